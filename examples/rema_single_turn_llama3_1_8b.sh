#!/usr/bin/env bash
# ReMA in a single turn (arXiv 2503.09501, appendix D.1) for Llama-3.1-8B-Instruct on one node with eight 80 GB GPUs: two agents,
# trained in turns, each a whole model. The baselines: ALGO=vrp_rl and ALGO=mrp_rl. Plans as JSON actions: ALGO=rema_json; rewarded
# by the agreement of their solutions: ALGO=rema_consistency. An adapter for each agent: POLICIES=lora_per_role,
# which takes ten times the rate (docs/guides/policies.md).
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download meta-llama/Llama-3.1-8B-Instruct --local-dir FOLDER}"

ALGO="${ALGO:-rema_single_turn}"
case "$ALGO" in
  vrp_rl | mrp_rl) numbers="$ALGO" policies=shared ;;
  *) numbers=rema_single_turn policies=model_per_role ;;
esac

python -m recipe.marsrl.main_marsrl \
  algo="$ALGO" \
  model=llama3_1_8b_instruct \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  pipeline=sequential \
  policies="${POLICIES:-$policies}" \
  cluster=8xgpu \
  training="${TRAINING:-${numbers}_published_llama3_1_8b}" \
  name="${NAME:-${ALGO//_/-}-llama3-1-8b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
