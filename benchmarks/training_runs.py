"""What the benchmarks that start real training runs share: the command and its records."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a run's `metrics.jsonl`."""

    number: int
    metrics: dict[str, float]
    timings: dict[str, float]


def command(root: Path, name: str, *overrides: str) -> list[str]:
    """The training program on the CPU, without evaluation."""
    return [
        sys.executable,
        "-m",
        "recipe.marsrl.main_marsrl",
        "cluster=cpu",
        f"name={name}",
        f"marsrl.run.output_root={root}",
        "trainer.logger=[]",
        "marsrl.evaluation.before=false",
        "marsrl.evaluation.after=false",
        *overrides,
    ]


def train(root: Path, name: str, *overrides: str) -> Path:
    """Runs to the end and returns the run's folder.

    Raises:
        RuntimeError: the run failed; with the end of its output.
    """
    done = subprocess.run(
        command(root, name, *overrides), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"run {name} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
        )
    return root / name


def steps(folder: Path) -> list[Step]:
    """The recorded steps of a run, in order."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [Step(line["step"], line["metrics"], line["timings"]) for line in map(json.loads, lines)]
