#!/usr/bin/env bash
# AttnRL's published evaluation (arXiv 2509.26628) on a node with eight 80 GB GPUs: the mean over 32 answers (AIME 2024,
# AIME 2025, AMC 2023) or over 4 (MATH-500, Minerva, OlympiadBench) of up to 32,768 tokens, and the mean of the six sets beside
# the paper's figures. Of a trained run: checkpoint=outputs/RUN. Some sets: benchmarks=aime24,aime25. They are read from the
# Hugging Face hub, or from a copy: ++marsrl.evaluation.benchmarks.aime24.file=FILE.
set -euo pipefail
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --local-dir FOLDER}"

python -m recipe.marsrl.main_eval \
  algo=attnrl \
  model=r1_distill_qwen_1_5b \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=hybrid \
  cluster=8xgpu \
  suite=attnrl \
  name="${NAME:-attnrl-table}" \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
