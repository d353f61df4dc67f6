#!/usr/bin/env bash
# Supervised training on transcripts with tools with verl's own SFT trainer, as ARPO's runs begin (arXiv 2507.19849 and its
# launch script: 3 epochs, learning rate 7e-6 with a cosine, batches of 16, up to 15,000 tokens). TRANSCRIPTS is
# ARPO-SFT-54K's file (docs/methods/arpo.md). One node with eight GPUs, or NUM_GPUS.
set -euo pipefail
: "${TRANSCRIPTS:?set TRANSCRIPTS to a file of transcripts with tools, such as that of dongguanting/ARPO-SFT-54K}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model}"
OUTPUT_ROOT="${OUTPUT_ROOT:-$PWD/outputs}"
data="$OUTPUT_ROOT/arpo-sft-data"

# For a dry run the model need not be here.
limit=(--model "$MODEL_PATH" --max-tokens 15000)
[ "${DRY_RUN:-false}" = false ] || [ -d "$MODEL_PATH" ] || limit=()
python -m studies.arpo_data.sft "$TRANSCRIPTS" --output "$data" --tools "${TOOLS-search,python}" "${limit[@]}"
"$(dirname "$0")/trainer.sh" arpo "$data" "$OUTPUT_ROOT/arpo-sft" "$@"
