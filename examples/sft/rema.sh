#!/usr/bin/env bash
# Supervised training on dialogues with verl's own SFT trainer, as ReMA's runs in several turns begin (arXiv 2503.09501,
# D.2: Qwen2.5-7B, 3 epochs, learning rate 1e-5 with a cosine, batches of 8, lists of up to 4,096 tokens). SOLUTIONS is a
# JSONL file of marked solutions (docs/methods/rema.md). One node with eight GPUs, or NUM_GPUS.
set -euo pipefail
: "${SOLUTIONS:?set SOLUTIONS to a JSONL file of solutions marked with <meta_thinking> and <reasoning>}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model}"
OUTPUT_ROOT="${OUTPUT_ROOT:-$PWD/outputs}"
data="$OUTPUT_ROOT/rema-sft-data"

# For a dry run the model need not be here.
limit=(--model "$MODEL_PATH" --max-tokens 4096)
[ "${DRY_RUN:-false}" = false ] || [ -d "$MODEL_PATH" ] || limit=()
python -m studies.rema_data.sft "$SOLUTIONS" --output "$data" "${limit[@]}"
"$(dirname "$0")/trainer.sh" rema "$data" "$OUTPUT_ROOT/rema-sft" "$@"
