"""Runs a piece of code in a fresh interpreter with exactly the surroundings a test wants."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import marsrl_verl

# Looked for, not imported: the programs import them.
needs_workers = pytest.mark.skipif(
    find_spec("verl") is None or find_spec("vllm") is None, reason="the trainer and its workers are verl's"
)

_OURS = ("VERL_", "VLLM_", "MARSRL_", "PYTHONPATH", "RAY_")


def clean_environment() -> dict[str, str]:
    """This process's variables without those by which a run of ours, verl or vLLM is steered; the package is
    this process's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
    return {**kept, "PYTHONPATH": str(Path(marsrl_verl.__file__).parents[1])}


def start_fresh(code: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts `code` as a program; `report_of` waits for it."""
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


_TRACE = "Traceback (most recent call last)"
_TRANSPORT = "third_party/gloo/gloo/transport"
_FAILED = re.compile(r"ranks, rank \[([\d, ]+)\] failed")


def run_program(program: Path, folder: Path, *arguments: str) -> Path:
    """Runs a program, with one thread, that leaves what it found in a folder; the folder."""
    done = subprocess.run(
        [sys.executable, str(program), str(folder), *arguments],
        env=_one_thread(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, _traces(done.stdout)
    return folder


def run_on_ranks(name: str, folder: Path, *arguments: str) -> Path:
    """Runs a program of ranks on the processor; the folder. Where gloo lost the connection between all ranks,
    and none of them raised anything else or died, it is run once more."""
    text = _fork(name, folder, *arguments)
    if text is not None and lost_connection(text):
        warnings.warn(f"{name} is run again: {_traces(text)}", stacklevel=2)
        shutil.rmtree(folder)
        folder.mkdir()
        text = _fork(name, folder, *arguments)
    assert text is None, _traces(text)
    return folder


def _fork(name: str, folder: Path, *arguments: str) -> str | None:
    """What the program has said, if it failed."""
    server, output = _rank_server(), folder / "output.txt"
    words = [output, Path(__file__).with_name(f"{name}.py"), folder, *arguments]
    print(json.dumps(list(map(str, words))), file=server.stdin, flush=True)
    status = server.stdout.readline().strip()
    assert status, "rank_server.py has ended"
    return None if status == "0" else output.read_text()


@functools.cache
def _rank_server() -> subprocess.Popen[str]:
    """One for all programs of this process. It ends with it."""
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("rank_server.py"))],
        env=_one_thread(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _one_thread() -> dict[str, str]:
    return {**clean_environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def by_ranks(folder: Path) -> dict[int, Any]:
    """What such a program found, by number of ranks."""
    files = {path.stem.removeprefix("ranks_"): path for path in sorted(folder.glob("ranks_*.pt"))}
    return {int(world): torch.load(path, weights_only=False) for world, path in files.items()}


def lost_connection(text: str) -> bool:
    """Whether every rank that failed has said that gloo lost its connection, and nothing else: a rank that
    crashes makes the others say so too, and is no reason to try again."""
    failed = _FAILED.search(text)
    traces = text.split(_TRACE)[1:]
    return (
        failed is not None
        and len(failed[1].split(",")) == len(traces)
        and all(_TRANSPORT in one for one in traces)
    )


def _traces(text: str) -> str:
    """The ends of what each rank raised: the one that the others wait for is not the last to be told."""
    parts = text.split(_TRACE)
    return "\n".join(part[-2500:] for part in parts[-4:])
