#!/usr/bin/env bash
# verl's SFT trainer on rows that studies.…_data.sft made, for the scripts of this folder and of from_cold_start/:
#     trainer.sh CONFIG DATA_FOLDER TARGET_FOLDER [key=value …]
# One node with eight GPUs, or NUM_GPUS; CLUSTER=cpu: one process without a GPU. DRY_RUN=true composes verl's
# configuration and starts nothing.
set -euo pipefail
config="$1" data="$2" target="$3"
shift 3
program=verl.trainer.sft_trainer gpus="${NUM_GPUS:-8}" words=()
if [ "${CLUSTER:-}" = cpu ]; then
  export VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=marsrl_verl.verl_adapter.register
  program=marsrl_verl.verl_adapter.cpu.sft gpus=1
  words=(trainer.device=cpu engine.strategy=fsdp2 engine.use_torch_compile=false model.use_remove_padding=false
    model.enable_gradient_checkpointing=false +model.override_config.attn_implementation=sdpa)
fi
# Where nothing was held out verl's trainer has to be told not to validate.
validation=(data.val_files="$data/val.parquet")
[ -f "$data/val.parquet" ] || validation=(data.val_files=null trainer.test_freq=-1)
run=(torchrun --standalone --nproc-per-node "$gpus" -m "$program") output=/dev/stdout
if [ "${DRY_RUN:-false}" != false ]; then
  run=(python -m "$program" --cfg job) output="$target.yaml"
  mkdir -p "$(dirname "$target")"
  echo "verl's SFT trainer is not started; its configuration: $output"
fi
"${run[@]}" \
  --config-dir "$(cd "$(dirname "$0")" && pwd)" \
  --config-name "$config" \
  data.train_files="$data/train.parquet" \
  "${validation[@]}" \
  model.path="$MODEL_PATH" \
  trainer.n_gpus_per_node="$gpus" \
  trainer.default_local_dir="$target" \
  "${words[@]}" \
  "$@" > "$output"
