#!/usr/bin/env bash
# ReMA in a single turn (arXiv 2503.09501, appendix D.1) for Qwen2.5-7B-Instruct on one node with eight 80 GB GPUs: two agents,
# trained in turns, ten times each (ITERATIONS), each an adapter on the one model. The baselines, with ITERATIONS=1:
# ALGO=vrp_rl TRAINING=vrp_rl_published POLICIES=shared, and mrp_rl.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download Qwen/Qwen2.5-7B-Instruct --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo="${ALGO:-rema_single_turn}" \
  model=qwen2_5_7b_instruct \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  pipeline=sequential \
  policies="${POLICIES:-lora_per_role}" \
  cluster=8xgpu \
  training="${TRAINING:-rema_single_turn_published}" \
  name="${NAME:-rema-single-turn-qwen2-5-7b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.algo.iterations="${ITERATIONS:-10}" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
