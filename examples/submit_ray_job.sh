#!/usr/bin/env bash
# The published MarsRL setting as a Ray job. RAY_DASHBOARD is the address of the cluster's dashboard; the
# cluster's nodes need this package installed and must see the data files.
set -euo pipefail
: "${TRAIN_FILES:?set TRAIN_FILES to a parquet file of problems}"
: "${VAL_FILES:?set VAL_FILES to a parquet file of held-out problems}"

ray job submit --address "${RAY_DASHBOARD:-http://127.0.0.1:8265}" -- \
  python -m recipe.marsrl.main_marsrl \
  algo=marsrl \
  model=qwen3_30b_a3b_thinking_2507 \
  data=parquet \
  cluster=4x8xgpu \
  name="${NAME:-marsrl-qwen3-30b-a3b}" \
  data.train_files="$TRAIN_FILES" \
  data.val_files="$VAL_FILES" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
