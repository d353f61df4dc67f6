#!/usr/bin/env bash
# ARPO's published reasoning run (arXiv 2507.19849) for Qwen2.5-7B on one node with eight 80 GB GPUs: mathematics and
# questions, with Python and search. The model is one that was trained on transcripts with tools before (docs/methods/arpo.md).
# SEARCH_URL is a retriever's (docs/guides/tools.md).
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model: Qwen2.5-7B-Instruct, trained on transcripts with tools}"

python -m recipe.marsrl.main_marsrl \
  algo="${ALGO:-arpo}" \
  model=custom \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  cluster=8xgpu \
  training=arpo_reasoning \
  +marsrl.tools.python.target=python \
  +marsrl.tools.search.target=search \
  +marsrl.tools.search.backend=http \
  "+marsrl.tools.search.http.urls=['${SEARCH_URL:-http://127.0.0.1:8000/retrieve}']" \
  'marsrl.prompts.kwargs.tools=[search,python]' \
  name="${NAME:-arpo-qwen2-5-7b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
