"""What is rehearsed: every example, and every preset of a method, model or training that no example has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from composing import has_presets
from example_scripts import SCRIPTS, copy_of, hub_id, recorded_calls, training_arguments
from small_models import make_model

ELSEWHERE = {
    "slurm.sbatch": "starts what marsrl_qwen3_30b_a3b.sh starts",
    "submit_ray_job.sh": "starts what marsrl_qwen3_30b_a3b.sh starts",
}
"""Scripts that are not rehearsed by themselves. (`sft/rema.sh` starts verl's own trainer:
tests/e2e/test_rema_cold_start.py.)"""
ROWS = 16


@dataclass(frozen=True)
class Rehearsal:
    """A script as it is called: with variables, and further arguments."""

    name: str
    script: str
    environment: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The hub id of the model that the script is written for."""
        return hub_id(self.script)

    @property
    def judges(self) -> bool:
        """Whether its data are pairs of answers."""
        return "judge" in self.script

    def arguments(self, folder: Path, model: Path, data: Path, search_url: str) -> list[str]:
        """The command line of the training program, as the script composes it."""
        environment = {
            "MODEL_PATH": str(model),
            "TRAIN_FILES": str(data),
            "VAL_FILES": str(data),
            "OUTPUT_ROOT": str(folder),
            "NAME": "run",
            "SEARCH_URL": search_url,
        }
        words = (*self.words, *copy_of(self.script, data))
        (call,) = recorded_calls(self.script, folder, {**environment, **self.environment}, *words)
        return training_arguments(call)


def _with_algo(script: str, *presets: str) -> list[Rehearsal]:
    """A script with ALGO."""
    stem = Path(script).stem
    return [Rehearsal(f"{stem}:{preset}", script, {"ALGO": preset}) for preset in presets]


def _with(script: str, *words: str) -> list[Rehearsal]:
    """A script with another preset each."""
    stem = Path(script).stem
    return [Rehearsal(f"{stem}:{word.partition('=')[2]}", script, {}, (word,)) for word in words]


ALL = (
    *(Rehearsal(Path(script).stem, script) for script in SCRIPTS if script not in ELSEWHERE),
    *_with(
        "marsrl_qwen3_4b_one_gpu.sh",
        *("algo=marsrl_s", "algo=marsrl_vc", "algo=marsrl_balanced", "algo=marsrl_random"),
        *("algo=marsrl_released_parser", "algo=grpo", "algo=grpo_dapo", "training=shared_prefixes"),
        *("pipeline=overlapped", "pipeline=sequential", "policies=lora"),
    ),
    Rehearsal(
        "marsrl_qwen3_4b_one_gpu:state_on_gpu",
        "marsrl_qwen3_4b_one_gpu.sh",
        words=("actor_rollout_ref.actor.fsdp_config.offload_policy=false",),
    ),
    *_with(
        "attnrl_r1_distill_1_5b.sh",
        "algo=attnrl_released",
        "algo=treerl",
        "algo=treerl_baseline",
        "algo=grpo_30",
    ),
    *_with_algo(
        "arpo_qwen2_5_7b.sh", "arpo_random", "arpo_released", "grpo_tools", "dapo_tools", "reinforce_pp_tools"
    ),
    *_with("arpo_qwen3_8b_deep_search.sh", "training=arpo_deep_search_14b"),
    *_with_algo("rema_qwen2_5_7b.sh", "rema_released", "rema_separate"),
    *_with("rema_qwen2_5_7b.sh", "training=rema_ablation_1024"),
    *_with_algo("rema_single_turn_qwen2_5_7b.sh", "rema_json", "rema_consistency"),
    *(
        one
        for script in SCRIPTS
        if script.startswith("rema_single_turn")
        for one in _with_algo(script, "vrp_rl", "mrp_rl")
    ),
    *(
        one
        for script in SCRIPTS
        if script.startswith("rema_judge")
        for one in _with_algo(script, "vrp_judge", "mrp_judge")
    ),
)
REHEARSALS = tuple(
    one
    for one in ALL
    if one.script in SCRIPTS and has_presets([*one.words, f"algo={one.environment.get('ALGO', 'marsrl')}"])
)
"""A method that is taken away takes its scripts and presets with it."""


def make_files(rehearsal: Rehearsal, folder: Path) -> tuple[Path, Path]:
    """The model's folder and the data file, made where they are not there yet."""
    model = folder / "models" / rehearsal.model.rpartition("/")[2]
    if not (model / "tokenizer.json").is_file():
        make_model(rehearsal.model, model)
    data = folder / ("pairs.parquet" if rehearsal.judges else "problems.parquet")
    if not data.is_file():
        _write_rows(data, rehearsal.judges)
    return model, data


def _write_rows(path: Path, pairs: bool) -> None:
    import pandas

    def row(number: int) -> dict[str, object]:
        answers = {"answer_a": f"It is {number}.", "answer_b": f"It is {number + 1}."} if pairs else {}
        truth = "AB"[number % 2] if pairs else str(2 * number + 1)
        return {
            "data_source": "rehearsal",
            "ability": "math",
            "prompt": [{"role": "user", "content": f"What is {number} + {number + 1}?"}],
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"index": number, "split": "train", **answers},
        }

    pandas.DataFrame([row(number) for number in range(ROWS)]).to_parquet(path)
