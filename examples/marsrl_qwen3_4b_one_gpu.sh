#!/usr/bin/env bash
# MarsRL with Qwen3-4B-Thinking-2507 on one 80 GB GPU. Lengths and batch size are ours, not published.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download Qwen/Qwen3-4B-Thinking-2507 --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo=marsrl \
  model=qwen3_4b_thinking_2507 \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  cluster=1xgpu \
  name="${NAME:-marsrl-qwen3-4b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  data.train_batch_size=16 \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
