#!/usr/bin/env bash
# MarsRL as published (arXiv 2511.11373, §4.1) on four nodes with eight 80 GB GPUs each. Run it on a node
# of a Ray cluster that has all of them (`ray start` on every node).
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"

python -m recipe.marsrl.main_marsrl \
  algo=marsrl \
  model=qwen3_30b_a3b_thinking_2507 \
  data=parquet \
  reward=math_verify \
  pipeline=pipelined \
  cluster=4x8xgpu \
  name="${NAME:-marsrl-qwen3-30b-a3b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
