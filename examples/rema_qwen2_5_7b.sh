#!/usr/bin/env bash
# ReMA in several turns as published (arXiv 2503.09501) for Qwen2.5-7B, on four nodes with eight 80 GB GPUs each. Ray runs
# on them already; give this on one of them, with OUTPUT_ROOT on a disk that all of them see. The model is one that was
# trained on dialogues before: examples/sft/rema.sh.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: what examples/sft/rema.sh has trained}"

python -m recipe.marsrl.main_marsrl \
  algo="${ALGO:-rema}" \
  model=custom \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=math_verify \
  cluster=4x8xgpu \
  training=rema_published \
  name="${NAME:-rema-qwen2-5-7b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  ray_kwargs.ray_init.address=auto \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
