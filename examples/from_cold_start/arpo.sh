#!/usr/bin/env bash
# ARPO's reasoning run (arXiv 2507.19849) for Qwen2.5-7B, from released data to its table, on one node with eight 80 GB GPUs:
# bash arpo.sh [data|sft|train|evaluate|export|serve [key=value …]] (docs/guides/cold_start.md).
set -euo pipefail
BASE_MODEL="${BASE_MODEL:-Qwen/Qwen2.5-7B-Instruct}"
# dongguanting/ARPO-SFT-54K, and ARPO/rl_datasets/train_10k.parquet of RUC-NLPIR/ARPO.
TRANSCRIPTS="${TRANSCRIPTS:-downloads/final_sft_edition9.json}"
PROBLEMS="${PROBLEMS:-downloads/train_10k.parquet}"
SEARCH_URL="${SEARCH_URL:-http://127.0.0.1:8000/retrieve}"
NAME="${NAME:-arpo-qwen2-5-7b}" SUITE=arpo STAGES=(data sft train evaluate export)
SETS=(aime24 aime25 math500 gsm8k webwalker hotpotqa twowiki musique bamboogle)
. "$(dirname "${BASH_SOURCE[0]}")/stages.sh"

# What the agent is, as in examples/arpo_qwen2_5_7b.sh.
system=(
  algo=arpo model=custom training=arpo_reasoning "cluster=${CLUSTER:-8xgpu}"
  'marsrl.prompts.kwargs.tools=[search,python]'
)
tools=(
  +marsrl.tools.python.target=python +marsrl.tools.search.target=search +marsrl.tools.search.backend=http
  "+marsrl.tools.search.http.urls=['$SEARCH_URL']"
)

# Without the rows' own system messages: marsrl.prompts words one for transcripts, problems and benchmarks alike.
stage_data() { prepare --source arpo_train --input "$PROBLEMS" --drop-system --without-answers "$@"; }
stage_sft() { MODEL_PATH="$BASE_MODEL" TRANSCRIPTS="$TRANSCRIPTS" "$EXAMPLES/sft/arpo.sh" "$@"; }
stage_train() {
  local model
  model="$(trained_by_sft arpo-sft)"
  SEARCH_URL="$SEARCH_URL" train_by arpo_qwen2_5_7b.sh "$model" "$@"
}
stage_evaluate() {
  local model
  model="$(trained_by_sft arpo-sft)"
  # The suite has the tools, with the limits of the paper's evaluation.
  evaluate_by "${system[@]}" actor_rollout_ref.model.path="$model" \
    marsrl.tools.search.backend=http "marsrl.tools.search.http.urls=['$SEARCH_URL']" "$@"
}
stage_serve() {
  local model
  model="$(trained_by_sft arpo-sft)"
  with_checkpoint recipe.marsrl.serve "${system[@]}" "${tools[@]}" actor_rollout_ref.model.path="$model" name="$NAME-served" "$@"
}
run_stages "$@"
