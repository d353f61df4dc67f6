#!/usr/bin/env bash
# AttnRL as published (arXiv 2509.26628) for DeepSeek-R1-Distill-Qwen-1.5B on one node with eight 80 GB GPUs. With
# algo=attnrl_released it does what the authors' code does where that differs from the paper.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"

python -m recipe.marsrl.main_marsrl \
  algo=attnrl \
  model=r1_distill_qwen_1_5b \
  data=parquet \
  reward=hybrid \
  pipeline=pipelined \
  cluster=8xgpu \
  name="${NAME:-attnrl-r1-distill-1.5b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  data.train_batch_size=64 \
  marsrl.pipeline.updates_per_step=10 \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.kl_loss_type=low_var_kl \
  actor_rollout_ref.actor.fsdp_config.offload_policy=false \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
