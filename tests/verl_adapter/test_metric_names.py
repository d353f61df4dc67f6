"""The tables of metrics in `docs/` and what a run logs name the same metrics.

The run is the trainer as the task runner builds it: its loop, data, scheduler, batches, observer and
checkpoints. Engine and workers are scripted.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("verl", reason="the trainer is verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

import torch
from composing import TAKEN_AWAY
from marsrl_script import ScriptedEngine, SkillModel
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.credit.turn_ratio import LOSS as TURN_RATIO
from marsrl_verl.demo.files import tiny_data
from marsrl_verl.verl_adapter.checkpoint.files import describe_shards
from marsrl_verl.verl_adapter.engine.policy_loss import SPEC_KEY
from marsrl_verl.verl_adapter.engine.probe_engine import MEASURE_KEY
from marsrl_verl.verl_adapter.engine.rank_rows import HeldRows
from marsrl_verl.verl_adapter.engine.shared_prefix_engine import COMPUTED_TOKENS, SHARE_KEY
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineGuard, EngineWatch
from marsrl_verl.verl_adapter.rollout_server.generation import Round
from marsrl_verl.verl_adapter.rollout_server.prefill_counters import PrefillCounters
from marsrl_verl.verl_adapter.rollout_server.worker import describe
from marsrl_verl.verl_adapter.run import task_runner
from marsrl_verl.verl_adapter.trainer import tracking as tracking_module

pytestmark = pytest.mark.slow

OTHERS = sorted(Path(__file__).parent.glob("*_metrics.py"))
DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "reference" / "metrics.md", *sorted((DOCS / "methods").glob("*.md"))]
"""What every method logs, and each method's own page."""
HEAD = "| name | unit | meaning |\n"


def _limits(role: str) -> tuple[str, ...]:
    return f"marsrl.roles.{role}.max_prompt_tokens=2000", f"marsrl.roles.{role}.max_new_tokens=90"


COMMON = (
    "cluster=cpu",
    "marsrl.run.progress=false",
    "data.train_batch_size=4",
    "marsrl.algo.group_size=4",
    "trainer.total_training_steps=10",
    "trainer.save_freq=5",
    "trainer.logger=[recorder]",
    "marsrl.evaluation.every=5",
    "marsrl.evaluation.problems=20",
    "marsrl.evaluation.samples_per_problem=2",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
)
# Scripted tokens are bytes: a Solver's answer takes two segments, now and then one.
SOLVER = _limits("solver")
SETTINGS = (
    *COMMON,
    *SOLVER,
    *_limits("verifier"),
    *_limits("corrector"),
    "marsrl.evaluation.samples_per_problem=8",
    "training=shared_prefixes",
    "marsrl.pipeline.max_segments=2",
    "marsrl.pipeline.min_group=2",
    "marsrl.off_policy.mode=tis",
    "marsrl.algo.mastered_tokens.enabled=true",
    "marsrl.algo.estimator=reinforce_pp",
    "algorithm.use_kl_in_reward=true",
)
OF_VERL = {
    "pg_loss": [0.1], "pg_clipfrac": [0.0], "ppo_kl": [0.0], "loss": [0.1], "grad_norm": [1.0],
    "perf/max_memory_allocated_gb": [0.0], "mfu": [0.1], "weights_max": [2.0],
}  # fmt: skip


def shares_of(spec: LossSpec) -> dict[str, list[float]]:
    """What the policy loss over turns sends to be divided, where it is the run's."""
    if spec.name != TURN_RATIO:
        return {}
    names = ["clip_frac", "dual_clip_frac", "pre_clip_frac"]
    names += [f"clip_frac/{label}" for label in spec.settings["labels"]]
    return {f"share/{name}{part}": [2.0] for name in names for part in ("", "/of")}


@dataclass
class Done:
    """A round that was over when it began."""

    outputs: list

    def wait(self) -> Round:
        return Round(self.outputs, 0.5, PrefillCounters(100, 60, 0.25), shared_prompt_tokens=80)


class Engine(ScriptedEngine):
    """The engine, and what brings it weights."""

    def start(self, requests, sampling) -> Done:
        outputs = self.generate(requests, sampling)
        for output in outputs:
            describe(output, self.chat)  # as the rollout workers do
        return Done(outputs)

    def update_weights(self, version: int) -> None:
        self.policy_version = version

    def forget_routes(self) -> None:
        pass


class Workers:
    """The ranks: every token has probability 0.995, and rows differ in entropy."""

    _dispatch_info = {"actor": [0]}  # noqa: RUF012 — verl's name

    def __init__(self) -> None:
        self._held = HeldRows()

    def hold_rows(self, data):
        self._held.hold(data)
        return TensorDict({}, batch_size=[])

    def compute_log_prob(self, data):
        offsets = self._held.complete(data)["response_mask"].offsets()
        entropies = torch.cat([torch.full((int(n),), 0.1 * (i % 4)) for i, n in enumerate(offsets.diff())])
        values = {"log_probs": torch.full_like(entropies, -0.005), "entropy": entropies}
        if tu.get_non_tensor_data(data=data, key=MEASURE_KEY, default=None):
            values["influence"] = torch.linspace(0.0, 1.0, len(entropies))
        nested = {k: torch.nested.nested_tensor_from_jagged(v, offsets) for k, v in values.items()}
        return tu.get_tensordict(tensor_dict=nested, non_tensor_dict={"metrics": {"mfu": 0.0}})

    compute_ref_log_prob = compute_log_prob

    def update_actor(self, data):
        found = dict(OF_VERL)
        if tu.get_non_tensor_data(data=data, key=SHARE_KEY, default=False):
            found[COMPUTED_TOKENS] = 100
        spec = tu.get_non_tensor_data(data=data, key=SPEC_KEY, default=LossSpec())
        found |= shares_of(spec)
        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": found})

    def save_checkpoint(self, path, *_args, **_kwargs) -> None:
        Path(path).mkdir(parents=True)
        (Path(path) / "model_world_size_1_rank_0.pt").write_bytes(b"weights")

    def describe_shards(self, folder):
        return [describe_shards(Path(folder), 0)]


class Recorder:
    """Stands for verl's `Tracking`."""

    logged: dict[str, float]

    def __init__(self, **_kwargs: Any) -> None:
        Recorder.logged = {}

    def log(self, data: dict[str, float], step: int) -> None:
        self.logged |= data


@dataclass(frozen=True)
class Logged:
    """What a run left behind."""

    folder: Path
    names: dict[str, float]
    """Everything that went to the loggers."""


def train(
    folder: Path, script: Any, *settings: str, engine_class: Any = Engine, runner: Any = None
) -> Logged:
    """A run to its end.

    Args:
        script: of `engine_class`.
        engine_class: for programs of another kind than a call.
        runner: of the settings: changes to the `RolloutRunner`.
    """
    config = compose_config(parse_arguments([*settings, f"marsrl.run.output_dir={folder}"])).config
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking_module, "Tracking", Recorder)
        patch.setattr(task_runner, "register_replica", lambda: None)  # it would stay for other tests
        trainer = task_runner.MarsRLTaskRunner().build_trainer(config)
        own = {} if runner is None else runner(typed_settings(config))
        engine, workers = engine_class(script, **own), Workers()
        trainer.async_rollout_manager = trainer.checkpoint_manager = engine
        trainer.engines = EngineGuard(EngineWatch((), 60.0), 60.0)
        trainer.actor_rollout_wg = trainer.ref_policy_wg = workers
        trainer.fit()
        trainer.close()
    return Logged(folder, Recorder.logged)


FROZEN = [
    {"solution": "\\boxed{1}", "correct": True, "report": "It is wrong."},
    {"solution": "\\boxed{2}", "correct": False, "report": "It is wrong."},
]
"""Solutions that the held-out problems bring along."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Logged]:
    """A run of MarsRL, and one of each other method that has a file `<method>_metrics.py` here; without a
    Solver it says its own limits (`LIMITS`), with programs of another kind its own `Engine`."""
    folder = tmp_path_factory.mktemp("metrics")
    others = [import_module(path.stem) for path in OTHERS]
    with pytest.MonkeyPatch.context() as patch:
        for name in tracking_module.logger_variables(
            folder
        ):  # a run sets what is not set; gone again when this ends
            patch.setenv(name, "")
            patch.delenv(name)
        rows = pq.read_table(tiny_data("held_out", 400)).to_pylist()
        for number, row in enumerate(rows):
            row["data_source"] = "other" if number < 5 else row["data_source"]
            row["extra_info"]["frozen_solutions"] = FROZEN
        pq.write_table(pa.Table.from_pylist(rows), folder / "held_out.parquet")
        sources = f"data.val_files=['{folder / 'held_out.parquet'}']"
        return [
            train(folder / "marsrl", SkillModel(seed=2), *SETTINGS, sources),
            *(
                train(
                    folder / one.__name__,
                    one.script,
                    *COMMON,
                    *getattr(one, "LIMITS", SOLVER),
                    *one.SETTINGS,
                    engine_class=getattr(one, "Engine", Engine),
                    runner=getattr(one, "runner", None),
                )
                for one in others
            ),
        ]


def all_names(runs: list[Logged]) -> list[str]:
    return sorted({name for run in runs for name in run.names})


@functools.cache
def documented() -> list[str]:
    """The names of the first column of the tables of metrics."""
    text = "".join(page.read_text().partition(HEAD)[2].split("\n\n")[0] for page in PAGES)
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@functools.cache
def pattern(name: str) -> re.Pattern[str]:
    """A documented name as an expression: `<…>` is one part, `[…]` optional, `*` anything."""
    text = re.escape(name).replace(r"\*", ".+").replace(r"\[", "(?:").replace(r"\]", ")?")
    return re.compile(re.sub(r"<[^>]+>", "[^/]+", text))


def is_verls(name: str) -> bool:
    ours = name == "actor/weights_max"
    return name == "perf/mfu/actor" or (name.removeprefix("actor/") in OF_VERL and not ours)


def rows_for(name: str) -> list[str]:
    rows = [row for row in documented() if pattern(row).fullmatch(name)]
    # verl's names are a family; ours each have a row of their own.
    return rows if is_verls(name) else [row for row in rows if "*" not in row]


def test_every_logged_metric_has_one_row(runs):
    found = {name: rows_for(name) for name in all_names(runs)}
    assert {name: rows for name, rows in found.items() if len(rows) != 1} == {}


NOT_SCRIPTED = {
    *("val/solver_f1[_greedy]", "val/solver_exact_match[_greedy]"),
    *("val/flat_rerank_accuracy", "val/hierarchical_rerank_accuracy", "val/majority_accuracy"),
    "val/pass_at_<plans>x<solutions>",
}
"""Of answers that a reward grades by words (`test_single_role.py`), and of several solutions to a plan
(`test_rema_reranking.py`)."""


def test_every_row_is_of_a_metric_that_is_logged(runs):
    if TAKEN_AWAY:
        pytest.skip("metrics of several methods may be logged by the one that is taken away")
    names = {row for name in all_names(runs) for row in rows_for(name)}
    assert {row for row in documented() if row not in names} == NOT_SCRIPTED


def test_no_row_stands_twice():
    assert sorted(documented()) == sorted(set(documented()))


@pytest.mark.parametrize("number", range(1 + len(OTHERS)))
def test_the_runs_folder_holds_the_same(runs, number):
    folder = runs[number].folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    in_folder = {name for line in lines for name in line["metrics"]}
    in_folder |= {f"timing_s/{name}" for line in lines for name in line["timings"]}
    evaluations = [json.loads(path.read_text()) for path in (folder / "evaluations").iterdir()]
    for one in evaluations:
        for part in ("estimates", "effort"):
            in_folder |= {f"val/{name}" for name, item in one[part].items() if item["mean"] is not None}
            found = [item for item in one[part].values() if item["mean"] is not None]
            assert found and all(item["low"] <= item["mean"] <= item["high"] for item in found)
    assert in_folder == set(runs[number].names)


def test_every_number_is_finite(runs):
    assert all(abs(float(value)) < float("inf") for run in runs for value in run.names.values())
