"""Runs a piece of code in a fresh interpreter with exactly the surroundings a test wants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marsrl_verl

_OURS = ("VERL_", "VLLM_", "MARSRL_", "PYTHONPATH", "RAY_")


def clean_environment() -> dict[str, str]:
    """This process's variables without those by which a run of ours, verl or vLLM is steered; the package is
    this process's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    return {**kept, "PYTHONPATH": str(Path(marsrl_verl.__file__).parents[1])}


def start_fresh(code: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start `code` as a program; `report_of` waits for it."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**clean_environment(), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_of(process: subprocess.Popen[str], seconds: float = 300) -> Any:
    """The JSON value on the program's last line of output; fails with its error output."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, err[-4000:]
    return json.loads(out.splitlines()[-1])


def run_fresh(code: str, variables: Mapping[str, str] | None = None) -> Any:
    """`code`'s report: the JSON value it prints last."""
    return report_of(start_fresh(code, variables))


def run_program(program: Path, folder: Path) -> Path:
    """Run a program, with one thread, that leaves what it found in a folder; the folder."""
    done = subprocess.run(
        [sys.executable, str(program), str(folder)],
        env={**clean_environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return folder
