"""What is generated and measured, and how a measuring process is told and tells."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from benchmarks.throughput.dialogue import PROGRAM
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.core.request import Message, Problem, RolloutRequest, Sampling

PLAN_VARIABLE = "MARSRL_THROUGHPUT_PLAN"
"""Environment variable with the path of the plan."""


PLUGIN, SERVER, AGENT_LOOP = "plugin", "server alone", "verl's agent loop"
EVALUATION = "evaluation"
PLAIN, WITH_LOG_PROBS = "LLM.generate", "LLM.generate, log-probs"
NO_TEXT, SAME_WORK = "LLM.generate, no text", "LLM.generate, log-probs, no text"
"""What is measured: `Row.variant`. The plugin asks for log-probabilities and makes the text itself, so
`SAME_WORK` is what its engine does."""
OFFLINE = (
    (PLAIN, True, False),
    (WITH_LOG_PROBS, True, True),
    (NO_TEXT, False, False),
    (SAME_WORK, False, True),
)
"""Variants of `LLM.generate`: whether it makes text, and whether it gives log-probabilities."""
AS_STARTED = "LLM.generate, vLLM's own processes"
"""As `PLAIN`, with the engine in a process of its own: as vLLM starts it where nothing else is said, and as
it has to be behind a server. The CPU cluster's environment keeps `LLM.generate` in one process."""
OWN_PROCESSES = "ray_kwargs.ray_init.runtime_env.env_vars.VLLM_ENABLE_V1_MULTIPROCESSING='1'"
"""The override that does it."""
TURN_TOKENS = 4
PARTS = len(OFFLINE)
"""Most variants that one process measures."""


@dataclass(frozen=True)
class Workload:
    """How long responses are."""

    name: str
    max_tokens: int
    ignore_end: bool
    """Every response has exactly `max_tokens` tokens; else it ends where the model ends it."""
    problems: int
    """Per round."""
    turns: int = 1
    """More than one: dialogues, whose turns have `TURN_TOKENS` each, without `LLM.generate` beside them."""


@dataclass(frozen=True)
class Plan:
    """One measuring process."""

    overrides: tuple[str, ...]
    """Of the training configuration; engine, model, prompts and sampling come from it."""
    workloads: tuple[Workload, ...]
    problems: tuple[dict[str, Any], ...]
    """`Problem`s as dictionaries; round r of a workload has its own part of them."""
    group_size: int
    rounds: int
    """Measured rounds of each workload; one more comes before, as a warm-up."""
    results: str
    """The file that the process writes."""
    own_processes: bool = False
    """`LLM.generate` with `OWN_PROCESSES`, and nothing else."""
    agent_loop: bool = False
    """`AGENT_LOOP` on the plugin's engine, too."""
    evaluation: bool = False
    """`EVALUATION` on the plugin's engine, too."""

    def write(self, path: Path) -> Path:
        """What has its default is left out: earlier checkouts know fewer fields."""
        workloads = [_told(one) for one in self.workloads]
        path.write_text(json.dumps({**_told(self), "workloads": workloads}))
        return path

    @classmethod
    def read(cls) -> Plan:
        """The plan of this process."""
        data = json.loads(Path(os.environ[PLAN_VARIABLE]).read_text())
        workloads = tuple(Workload(**one) for one in data["workloads"])
        tuples = {name: tuple(data[name]) for name in ("overrides", "problems")}
        return cls(**{**data, **tuples, "workloads": workloads})

    def config(self) -> DictConfig:
        """The composed training configuration."""
        added = [OWN_PROCESSES] if self.own_processes else []
        return compose_config(parse_arguments([*self.overrides, *added])).config

    def needed(self, workload: Workload) -> int:
        """Problems of all rounds of a workload, the warm-up included."""
        return workload.problems * (self.rounds + 1) * PARTS

    def round_problems(self, workload: Workload, number: int, part: int = 0) -> list[Problem]:
        """The problems of one round.

        Both sides generate the same ones. No round repeats another's, of no workload, and a process that
        measures several variants gives each a part, so that no cached prefix helps.
        """
        before = self.workloads[: self.workloads.index(workload)]
        start = sum(self.needed(one) for one in before) + (number * PARTS + part) * workload.problems
        chosen = self.problems[start : start + workload.problems]
        if len(chosen) < workload.problems:
            raise ValueError(f"{len(self.problems)} problems are too few: round {number} of {workload.name}")
        return [Problem(**{**one, "messages": tuple(one["messages"])}) for one in chosen]


def _told(one: Any) -> dict[str, Any]:
    found = asdict(one)
    return {at.name: found[at.name] for at in fields(one) if found[at.name] != at.default}


@dataclass
class Row:
    """One measured round."""

    variant: str
    workload: str
    round: int
    """0 is the warm-up."""
    seconds: float
    samples: int
    tokens: int
    finished: int
    """Responses that the model ended itself."""
    threads: int | None = None
    """Threads of the engine's matrix products."""
    repeat: int = 0
    processor_seconds: dict[str, float] = field(default_factory=dict)
    """By kind of process."""
    checkout: str = ""
    """Of two that are compared, which one."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Piece:
    """Time of one piece of work on the samples of one round, done alone in one thread."""

    name: str
    workload: str
    milliseconds_per_sample: float
    kilobytes_per_sample: float | None = None
    repeat: int = 0


def write_results(path: str, rows: Sequence[Row], pieces: Sequence[Piece], facts: dict[str, Any]) -> None:
    """What a measuring process found."""
    data = {
        "rows": [asdict(row) for row in rows],
        "pieces": [asdict(piece) for piece in pieces],
        "facts": facts,
    }
    Path(path).write_text(json.dumps(data))


def read_results(path: Path, repeat: int) -> tuple[list[Row], list[Piece], dict[str, Any]]:
    """What `write_results` wrote."""
    data = json.loads(path.read_text())
    rows = [Row(**{**one, "repeat": repeat}) for one in data["rows"]]
    return rows, [Piece(**{**one, "repeat": repeat}) for one in data["pieces"]], data["facts"]


def solver_input(problem: Problem, messages: tuple[Message, ...], n: int, name: str) -> RolloutRequest:
    """The request that training makes of a problem."""
    return RolloutRequest(f"{problem.problem_id}/{name}", problem, SOLVER, SOLVER, messages, n=n)


def dialogue(request: RolloutRequest, turns: int) -> RolloutRequest:
    """The same with several turns."""
    return replace(request, rollout=PROGRAM, inputs={"turns": turns, "tokens": TURN_TOKENS})


def sampling_of(workload: Workload, solver: Sampling) -> Sampling:
    """The Solver's settings with the workload's length."""
    return replace(solver, max_new_tokens=workload.max_tokens, segment_tokens=None)
