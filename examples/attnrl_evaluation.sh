#!/usr/bin/env bash
# One set of AttnRL's published evaluation (arXiv 2509.26628) on a node with eight 80 GB GPUs: the mean over 32 answers (AIME
# 2024, AIME 2025, AMC 2023) or, with SAMPLES=4, over 4 (MATH-500, Minerva, OlympiadBench) of up to 32,768 tokens. Give it once
# for each set; the paper's overall figure is the plain mean of the six. Of a trained checkpoint:
# trainer.resume_mode=resume_path trainer.resume_from_path=…/checkpoints/global_step_500.
set -euo pipefail
: "${VAL_FILES:?set VAL_FILES to the parquet file of one set}"
: "${MODEL_PATH:?set MODEL_PATH to the folder of the model, on every node: hf download deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --local-dir FOLDER}"

python -m recipe.marsrl.main_marsrl \
  algo=attnrl \
  model=r1_distill_qwen_1_5b \
  actor_rollout_ref.model.path="$MODEL_PATH" \
  data=parquet \
  reward=hybrid \
  cluster=8xgpu \
  training=attnrl_published \
  evaluation=attnrl_published \
  trainer.val_only=true \
  name="${NAME:-evaluation-$(basename "${VAL_FILES%.parquet}")}" \
  data.train_files="${TRAIN_FILES:-$VAL_FILES}" \
  data.val_files="$VAL_FILES" \
  marsrl.evaluation.samples_per_problem="${SAMPLES:-32}" \
  marsrl.roles.solver.max_prompt_tokens=2048 \
  marsrl.roles.solver.max_new_tokens=32768 \
  marsrl.run.output_root="${OUTPUT_ROOT:-$PWD/outputs}" \
  "$@"
