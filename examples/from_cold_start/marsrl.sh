#!/usr/bin/env bash
# MarsRL (arXiv 2511.11373) for Qwen3-30B-A3B-Thinking-2507, from released data to its table, on four nodes with eight 80 GB
# GPUs each, on which Ray runs: bash marsrl.sh [data|train|evaluate|export|serve [key=value …]] (docs/guides/cold_start.md). One node
# does for the stages data, evaluate and serve.
set -euo pipefail
BASE_MODEL="${BASE_MODEL:-Qwen/Qwen3-30B-A3B-Thinking-2507}"
# BytedTsinghua-SIA/DAPO-Math-17k: data/dapo-math-17k.parquet. (The paper's problems are not published.)
PROBLEMS="${PROBLEMS:-downloads/dapo-math-17k.parquet}"
NAME="${NAME:-marsrl-qwen3-30b-a3b}" SUITE=marsrl STAGES=(data train evaluate export)
SETS=(aime25 beyondaime)
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"

# The problems come without instructions, and rewards look for a box.
box='marsrl.prompts.kwargs.solver_instruction="Please reason step by step, and put your final answer within \boxed{}."'
# What the system is, as in examples/marsrl_qwen3_30b_a3b.sh.
system=(
  algo=marsrl model=qwen3_30b_a3b_thinking_2507 actor_rollout_ref.model.path="$BASE_MODEL" reward=math_verify
  "cluster=${CLUSTER:-8xgpu}" "$box"
)

# Without what the model solves in all of 8 answers, as UloRL filters; a dry run asks nobody.
stage_data() {
  local asked=("${system[@]}")
  [ "$DRY_RUN" = false ] || asked=(--without-answers)
  prepare --source dapo_math --input "$PROBLEMS" "${asked[@]}" "$@"
}
stage_train() { train_by marsrl_qwen3_30b_a3b.sh "$BASE_MODEL" "$box" "$@"; }
stage_evaluate() { evaluate_by "${system[@]}" "$@"; }
stage_serve() { with_checkpoint recipe.marsrl.serve "${system[@]}" name="$NAME-served" "$@"; }
run_stages "$@"
