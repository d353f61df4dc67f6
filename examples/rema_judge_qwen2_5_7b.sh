#!/usr/bin/env bash
# ReMA as a judge of two answers (arXiv 2503.09501, appendix D.1.2) for Qwen2.5-7B-Instruct on one node with eight 80 GB GPUs. The
# baselines: ALGO=vrp_judge and ALGO=mrp_judge. TRAIN_FILES and VAL_FILES are made by
# python -m studies.rema_data.judge_data. The paper's table of a trained run: python -m recipe.marsrl.main_eval algo=rema_judge
# model=qwen2_5_7b_instruct data=parquet policies=model_per_role cluster=8xgpu suite=rema_judge checkpoint=outputs/RUN
# ++marsrl.evaluation.benchmarks.rewardbench970.file=TEST.parquet, the test half of the command above.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of pairs of answers}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out pairs}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download Qwen/Qwen2.5-7B-Instruct --local-dir FOLDER}"

ALGO="${ALGO:-rema_judge}"
case "$ALGO" in
  vrp_judge | mrp_judge) policies=shared ;;
  *) policies=model_per_role ;;
esac

python -m recipe.marsrl.main_marsrl \
  algo="$ALGO" \
  model=qwen2_5_7b_instruct \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  pipeline=sequential \
  policies="${POLICIES:-$policies}" \
  cluster=8xgpu \
  training="${TRAINING:-${ALGO}_published_qwen2_5_7b}" \
  name="${NAME:-${ALGO//_/-}-qwen2-5-7b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
