#!/usr/bin/env bash
# ReMA in a single turn (arXiv 2503.09501, appendix D.1) for Llama-3-8B-Instruct on one node with eight 80 GB GPUs: two agents,
# trained in turns, each an adapter on the one model. The baselines: ALGO=vrp_rl TRAINING=vrp_rl_published POLICIES=shared with
# marsrl.algo.episodes=12 actor_rollout_ref.actor.optim.lr=2e-7, and mrp_rl with marsrl.algo.episodes=10.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download meta-llama/Meta-Llama-3-8B-Instruct --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo="${ALGO:-rema_single_turn}" \
  model=llama3_8b_instruct \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  pipeline=sequential \
  policies="${POLICIES:-lora_per_role}" \
  cluster=8xgpu \
  training="${TRAINING:-rema_single_turn_published}" \
  name="${NAME:-rema-single-turn-llama3-8b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
