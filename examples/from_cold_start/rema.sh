#!/usr/bin/env bash
# ReMA in several turns (arXiv 2503.09501) for Qwen2.5-7B, from released data to a table, on four nodes with eight 80 GB GPUs
# each, on which Ray runs: bash rema.sh [data|sft|train|evaluate|export|serve [key=value …]] (docs/guides/cold_start.md).
set -euo pipefail
BASE_MODEL="${BASE_MODEL:-Qwen/Qwen2.5-7B}"
# Of ziyuwan/ReMA-public: the reasoning agent's views of 804 dialogues, and data/MATH/train_lv3to5_8k.parquet.
SOLUTIONS="${SOLUTIONS:-downloads/mamrp_reasoning.jsonl}"
PROBLEMS="${PROBLEMS:-downloads/train_lv3to5_8k.parquet}"
NAME="${NAME:-rema-qwen2-5-7b}" SUITE=rema STAGES=(data sft train evaluate export)
SETS=(math500 gsm8k aime24 amc23 gaokao2023en minerva olympiadbench)
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"

# What the two agents are, as in examples/rema_qwen2_5_7b.sh.
system=(algo=rema model=custom reward=math_verify training=rema_published "cluster=${CLUSTER:-8xgpu}")

stage_data() { prepare --source rema_math --input "$PROBLEMS" --without-answers "$@"; }
stage_sft() { MODEL_PATH="$BASE_MODEL" SOLUTIONS="$SOLUTIONS" "$EXAMPLES/sft/rema.sh" "$@"; }
stage_train() {
  local model
  model="$(trained_by_sft rema-sft)"
  train_by rema_qwen2_5_7b.sh "$model" "$@"
}
stage_evaluate() {
  local model
  model="$(trained_by_sft rema-sft)"
  evaluate_by "${system[@]}" actor_rollout_ref.model.path="$model" "$@"
}
stage_serve() {
  local model
  model="$(trained_by_sft rema-sft)"
  with_checkpoint recipe.marsrl.serve "${system[@]}" actor_rollout_ref.model.path="$model" name="$NAME-served" "$@"
}
run_stages "$@"
