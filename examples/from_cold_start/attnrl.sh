#!/usr/bin/env bash
# AttnRL (arXiv 2509.26628) for DeepSeek-R1-Distill-Qwen-1.5B, from released data to its table, on one node with eight 80 GB
# GPUs: bash attnrl.sh [data|train|evaluate|export|serve [key=value …]] (docs/guides/cold_start.md).
set -euo pipefail
BASE_MODEL="${BASE_MODEL:-deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}"
# Of RyanLiu112/AttnRL: data/train/dapo+math_train.parquet.
PROBLEMS="${PROBLEMS:-downloads/dapo+math_train.parquet}"
NAME="${NAME:-attnrl-r1-distill-1.5b}" SUITE=attnrl STAGES=(data train evaluate export)
SETS=(aime24 aime25 amc23 math500 minerva olympiadbench)
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"

# What the Solver is, as in examples/attnrl_r1_distill_1_5b.sh.
system=(
  algo=attnrl model=r1_distill_qwen_1_5b actor_rollout_ref.model.path="$BASE_MODEL" reward=hybrid
  "cluster=${CLUSTER:-8xgpu}"
)

stage_data() { prepare --source attnrl --input "$PROBLEMS" --without-answers "$@"; }
stage_train() { train_by attnrl_r1_distill_1_5b.sh "$BASE_MODEL" "$@"; }
stage_evaluate() { evaluate_by "${system[@]}" "$@"; }
stage_serve() { with_checkpoint recipe.marsrl.serve "${system[@]}" name="$NAME-served" "$@"; }
run_stages "$@"
