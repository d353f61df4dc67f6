"""The runs of a comparison: for every method and seed a command, and where its files lie."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from marsrl_verl.compare.suite import QUANTITIES, Suite

TRAIN = (sys.executable, "-m", "recipe.marsrl.main_marsrl")
"""The program that every run calls with its overrides."""

OWN_KEYS = (
    "name",
    "marsrl.run.output_root",
    "marsrl.run.output_dir",
    "marsrl.run.seed",
    *(one.setting for one in QUANTITIES.values()),
    "marsrl.run.if_exists",
    "trainer.total_training_steps",
)
"""Settings that the comparison makes itself: other values would hide the runs from it or break the budget."""

_WATCH = "marsrl.watch.nothing_trained"
_PLACE = frozenset(("name", "marsrl.run.output_root", _WATCH, "trainer.logger"))
"""Overrides that say where a run lies and reports, or that it goes on, and do not change what it does."""

_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


@dataclass(frozen=True, slots=True)
class Run:
    """One method with one seed."""

    method: str
    seed: int
    overrides: tuple[str, ...]
    root: Path
    """The folder of all runs of the comparison."""

    @property
    def name(self) -> str:
        """`<method>-seed<seed>`, also its folder's name."""
        return f"{self.method}-seed{self.seed}"

    @property
    def work(self) -> str:
        """Hash of what the run does: the last value of each override, wherever the run lies."""
        parts = (one.partition("=") for one in self.overrides)
        last = {key: value for key, _, value in parts if key not in _PLACE}
        return hashlib.sha256(json.dumps(sorted(last.items())).encode()).hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Folder that the training program writes."""
        return self.root / self.name

    @property
    def log_path(self) -> Path:
        """Log of the training program's output."""
        return self.root / f"{self.name}.log"

    @property
    def script_path(self) -> Path:
        """Script that a job of a Ray cluster executes."""
        return self.root / f"{self.name}.sh"

    @property
    def record_path(self) -> Path:
        """Written when it has ended well: what a comparison keeps of it. Beside the folder, which is the
        run's own, and needed no more."""
        return self.root / f"{self.name}.done.json"


def plan_runs(suite: Suite, seeds: int, output: Path, extra: tuple[str, ...] = ()) -> list[Run]:
    """All runs, seed by seed, so that an interrupted comparison still has every method: so many seeds from
    the suite's first one on, `extra` Hydra overrides after the suite's."""
    root = output / "runs"
    return [
        Run(method, seed, _overrides(suite, method, seed, root, extra), root)
        for seed in range(suite.first_seed, suite.first_seed + seeds)
        for method in suite.methods
    ]


def _overrides(suite: Suite, method: str, seed: int, root: Path, extra: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *suite.overrides,
        *suite.methods[method],
        f"name={quoted(f'{method}-seed{seed}')}",
        f"marsrl.run.output_root={quoted(str(root))}",
        f"marsrl.run.seed={seed}",
        f"{suite.budget.quantity.setting}={suite.budget.amount}",
        f"trainer.total_training_steps={suite.max_steps}",
        # A run that was cut off starts anew, so that its seconds are those of one whole run; it needs no
        # checkpoints then.
        "marsrl.run.if_exists=replace",
        "trainer.save_freq=-1",
        "trainer.logger=[]",
        "marsrl.run.log_rollouts=false",
        "marsrl.run.progress=false",
        f"{_WATCH}=warn",  # a run that learns nothing more has a result too
        *extra,
    )


def quoted(value: str) -> str:
    """A text as the value of a Hydra override: in quotes where its grammar would read a sign in it."""
    if _PLAIN.fullmatch(value):
        return value
    # In Hydra's grammar a backslash is only special before a quote and at the text's end.
    body = re.sub(r"(\\*)(?='|$)", lambda found: found.group(1) * 2, value).replace("'", r"\'")
    return f"'{body}'"
