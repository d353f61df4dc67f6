#!/usr/bin/env bash
# The published MarsRL setting as a Ray job, from any machine with Ray on it. RAY_DASHBOARD is the address of the
# cluster's dashboard; the cluster's nodes need this package installed. TRAIN_FILES, VAL_FILES, MODEL_PATH and
# OUTPUT_ROOT are paths there, on a disk that all of them see.
set -euo pipefail
: "${OUTPUT_ROOT:?set OUTPUT_ROOT to a folder that all nodes of the cluster see}"
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download Qwen/Qwen3-30B-A3B-Thinking-2507 --local-dir FOLDER}"

# A cluster that was started with a token (docs/guides/clusters.md) asks for it; RAY_AUTH_MODE=disabled is for one without.
export RAY_AUTH_MODE="${RAY_AUTH_MODE:-token}"
token="${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"
if [ "$RAY_AUTH_MODE" = token ] && [ -z "${RAY_AUTH_TOKEN:-}" ] && [ ! -s "$token" ]; then
  echo "no token of the cluster in $token: copy it from the head node (chmod 600), or set RAY_AUTH_TOKEN" >&2
  exit 2
fi

ray job submit --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" -- \
  python -m recipe.marsrl.main_marsrl \
  algo=marsrl \
  model=qwen3_30b_a3b_thinking_2507 \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  cluster=4x8xgpu \
  name="${NAME:-marsrl-qwen3-30b-a3b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="$OUTPUT_ROOT" \
  "$@"
