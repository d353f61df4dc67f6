#!/usr/bin/env bash
# ReMA in several turns on one GPU: a LoRA adapter for each agent on one model, trained in turn, ten steps each. The
# settings are not published ones. MODEL_PATH is a model that knows how to hold such dialogues (examples/sft/rema.sh).
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model}"

python -m recipe.marsrl.main_marsrl \
  algo=rema \
  model=custom \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=math_verify \
  cluster=1xgpu \
  training=rema_ablation_256 \
  policies=lora_per_role \
  actor_rollout_ref.actor.optim.lr=1e-5 \
  marsrl.algo.group_size=8 \
  marsrl.algo.max_turns=8 \
  marsrl.algo.alternate.enabled=true \
  data.train_batch_size=16 \
  name="${NAME:-rema-lora-one-gpu}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
