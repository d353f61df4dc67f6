#!/usr/bin/env bash
# MarsRL with Qwen3-4B-Thinking-2507 on one 80 GB GPU. Lengths and batch size are ours, not published.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"

python -m recipe.marsrl.main_marsrl \
  algo=marsrl \
  model=qwen3_4b_thinking_2507 \
  data=parquet \
  cluster=1xgpu \
  name="${NAME:-marsrl-qwen3-4b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  data.train_batch_size=16 \
  "$@"
