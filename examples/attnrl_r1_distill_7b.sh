#!/usr/bin/env bash
# AttnRL as published (arXiv 2509.26628) for DeepSeek-R1-Distill-Qwen-7B on three nodes with eight 80 GB GPUs each. Ray
# runs on them already; give this on one of them, with OUTPUT_ROOT on a disk that all of them see.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo=attnrl \
  model=r1_distill_qwen_7b \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=hybrid \
  pipeline=pipelined \
  cluster=8xgpu \
  trainer.nnodes=3 \
  training=attnrl_published \
  name="${NAME:-attnrl-r1-distill-7b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  ray_kwargs.ray_init.address=auto \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
