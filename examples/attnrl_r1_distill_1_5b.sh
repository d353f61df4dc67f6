#!/usr/bin/env bash
# AttnRL as published (arXiv 2509.26628) for DeepSeek-R1-Distill-Qwen-1.5B on one node with eight 80 GB GPUs. With
# algo=attnrl_released it does what the authors' code does where that differs from the paper.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo=attnrl \
  model=r1_distill_qwen_1_5b \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=hybrid \
  pipeline=pipelined \
  cluster=8xgpu \
  training=attnrl_published \
  name="${NAME:-attnrl-r1-distill-1.5b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
