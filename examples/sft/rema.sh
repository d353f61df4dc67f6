#!/usr/bin/env bash
# Supervised training on dialogues with verl's own SFT trainer, as ReMA's runs in several turns begin (arXiv 2503.09501,
# D.2: Qwen2.5-7B, 3 epochs, learning rate 1e-5 with a cosine, batches of 8, lists of up to 4,096 tokens). SOLUTIONS is a
# JSONL file of marked solutions (docs/rema.md). One node with eight GPUs, or NUM_GPUS.
set -euo pipefail
: "${SOLUTIONS:?set SOLUTIONS to a JSONL file of solutions marked with <meta_thinking> and <reasoning>}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model}"
OUTPUT_ROOT="${OUTPUT_ROOT:-$PWD/outputs}"
DATA="$OUTPUT_ROOT/rema-sft-data"

python -m studies.rema_data.sft "$SOLUTIONS" --output "$DATA" --model "$MODEL_PATH" --max-tokens 4096
# Where nothing was held out verl's trainer has to be told not to validate.
VALIDATION=(data.val_files="$DATA/val.parquet")
[[ -f "$DATA/val.parquet" ]] || VALIDATION=(data.val_files=null trainer.test_freq=-1)
torchrun --standalone --nproc-per-node "${NUM_GPUS:-8}" -m verl.trainer.sft_trainer \
  --config-dir "$(dirname "$0")" \
  --config-name rema \
  data.train_files="$DATA/train.parquet" \
  "${VALIDATION[@]}" \
  model.path="$MODEL_PATH" \
  trainer.n_gpus_per_node="${NUM_GPUS:-8}" \
  trainer.default_local_dir="$OUTPUT_ROOT/rema-sft" \
  "$@"
