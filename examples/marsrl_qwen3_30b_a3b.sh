#!/usr/bin/env bash
# MarsRL as published (arXiv 2511.11373, §4.1) on four nodes with eight 80 GB GPUs each. Run it on a node
# of a Ray cluster that has all of them (`ray start` on every node), with paths on a disk that all nodes see.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download Qwen/Qwen3-30B-A3B-Thinking-2507 --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo=marsrl \
  model=qwen3_30b_a3b_thinking_2507 \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=math_verify \
  pipeline=pipelined \
  cluster=4x8xgpu \
  name="${NAME:-marsrl-qwen3-30b-a3b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  ray_kwargs.ray_init.address=auto \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
