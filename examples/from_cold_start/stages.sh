# What the scripts of this folder share; they source it. A script is given as
#
#     SCRIPT                            all of STAGES, one after another
#     SCRIPT STAGE [key=value …]        one stage, with settings for its command
#
# The script sets STAGES, NAME (of the run), SUITE and SETS (its benchmarks), BASE_MODEL, and stage_… functions.
# OUTPUT_ROOT    what is made lies here (outputs)
# CLUSTER        another one than the published: 1xgpu, 8xgpu, cpu
# HELD_OUT       problems of the training set that are evaluated on in between (200)
# BENCHMARK_FILES  a folder with copies of benchmarks, NAME.parquet, .jsonl or .json; others come from the hub
# DRY_RUN=true   all commands are composed and checked, below OUTPUT_ROOT/dry_run; where a stage before this one has left
#                no model, that of BASE_MODEL stands for it
EXAMPLES="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export DRY_RUN="${DRY_RUN:-false}"
runs="${OUTPUT_ROOT:-$PWD/outputs}"
export OUTPUT_ROOT="$runs"
dry=()
if [ "$DRY_RUN" != false ]; then
  OUTPUT_ROOT="$runs/dry_run" dry=(dry_run=true)
fi
data="$OUTPUT_ROOT/$NAME-data"
# Ray of the machine itself, where the script is for a cluster on which it runs already.
cluster=(${CLUSTER:+"cluster=$CLUSTER" ray_kwargs.ray_init.address=null})

run_stages() {
  local stage="${1:-}"
  if [ -z "$stage" ]; then
    for stage in "${STAGES[@]}"; do
      echo "== $stage"
      "stage_$stage"
    done
  elif declare -F "stage_$stage" > /dev/null; then
    shift
    "stage_$stage" "$@"
  else
    echo "there is no stage $stage: expected ${STAGES[*]} or serve, and settings behind it" >&2
    exit 2
  fi
}

# A copy of a benchmark, by its name.
copy_of() {
  local file
  for file in "${BENCHMARK_FILES:-/nowhere}/$1".{parquet,jsonl,json}; do
    if [ -f "$file" ]; then echo "$file" && return; fi
  done
  return 1
}

# Problems for training, without those of the suite: prepare_data's options.
prepare() {
  local set sets=()
  for set in "${SETS[@]}"; do
    # A dry run reads nothing from the hub.
    copy_of "$set" > /dev/null || [ "$DRY_RUN" = false ] || continue
    sets+=(--evaluation-set "$(copy_of "$set" || echo "$set")")
  done
  python -m recipe.marsrl.prepare_data --output "$data" --held-out "${HELD_OUT:-200}" --same-problem look --replace \
    "${sets[@]}" "$@"
}

# The model that supervised training has left in a folder of runs.
trained_by_sft() {
  local newest="$runs/$1/latest_checkpointed_iteration.txt"
  if [ -f "$newest" ]; then
    echo "$runs/$1/global_step_$(cat "$newest")/huggingface"
  elif [ "$DRY_RUN" != false ]; then
    echo "$BASE_MODEL"
  else
    echo "$newest is missing: give the stage sft first" >&2
    exit 1
  fi
}

# One of the examples, on the data that the stage before has left.
train_by() {
  local script="$1" model="$2"
  shift 2
  TRAIN_FILES="$data/train.parquet" VAL_FILES="$data/val.parquet" MODEL_PATH="$model" NAME="$NAME" \
    "$EXAMPLES/$script" "${cluster[@]}" "${dry[@]}" "$@"
}

# The trained system under a command of ours: evaluated, or served.
with_checkpoint() {
  local checkpoint=(checkpoint="$runs/$NAME")
  if [ "$DRY_RUN" != false ] && [ ! -d "$runs/$NAME/checkpoints" ]; then
    checkpoint=()
    echo "$runs/$NAME has no checkpoint yet: the plan is that of the model before training"
  fi
  python -m "$@" "${checkpoint[@]}" marsrl.run.output_root="$OUTPUT_ROOT" "${dry[@]}"
}

# The suite's table: the system's words, then settings.
evaluate_by() {
  local set copies=()
  for set in "${SETS[@]}"; do
    if copy_of "$set" > /dev/null; then
      copies+=("marsrl.evaluation.benchmarks.$set.file=$(copy_of "$set")")
    fi
  done
  with_checkpoint recipe.marsrl.main_eval "$@" data=parquet suite="$SUITE" "${copies[@]}" name="$NAME-table"
}

stage_export() {
  local words=(recipe.marsrl.export checkpoint="$runs/$NAME" target="$runs/$NAME-exported")
  if [ -f "$runs/$NAME-table/evaluations/alone.json" ]; then words+=("evaluations=[$runs/$NAME-table]"); fi
  words+=("$@")
  if [ "$DRY_RUN" != false ]; then
    echo "a dry run exports nothing: python -m ${words[*]}"
  else
    python -m "${words[@]}"
  fi
}
