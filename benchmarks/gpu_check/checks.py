"""What a check is, and where it asks for CUDA."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parents[2]
"""The checkout: tests and benchmarks are run from it."""
NO_DEVICE = "no CUDA device"
NOT_INSTALLED = "not installed"
ON_PROCESSOR = "MARSRL_GPU_CHECK_ON_PROCESSOR"
"""Environment variable: trainings run with `cluster=cpu`, to try the checks themselves."""
MORE_OVERRIDES = "MARSRL_GPU_CHECK_OVERRIDES"
"""Environment variable: overrides of all trainings and engines, one a line."""
_GONE_S = 20
_END = 2000
"""Characters of a failed program's output that a message shows."""


class NoCudaDeviceError(RuntimeError):
    """The check has done what a processor can do of it."""


class NotInstalledError(RuntimeError):
    """The package that is checked is optional and not installed."""


class CheckError(RuntimeError):
    """A check found something else than it expected."""


@dataclass
class Bench:
    """What a check works with, and what it found."""

    folder: Path
    """Its own, empty at the beginning of a call."""
    figures: dict[str, Any] = field(default_factory=dict)
    """By name; kept also where the check fails later."""

    def cuda(self) -> Any:
        """The GPU. What a check does before it asks runs everywhere.

        Raises:
            NoCudaDeviceError: torch sees none.
        """
        import torch

        if not torch.cuda.is_available():
            raise NoCudaDeviceError(NO_DEVICE)
        return torch.device("cuda", 0)

    def trainer(self) -> None:
        """Require what this check trains on: a GPU, or nothing where `ON_PROCESSOR` is set.

        Raises:
            NoCudaDeviceError: torch sees no GPU.
        """
        if not on_processor():
            self.cuda()

    def run(self, command: Sequence[str], **variables: str) -> str:
        """A program's output, which also goes into the check's log, line by line: a check that is ended
        early leaves what its program had printed.

        Raises:
            CheckError: it failed; with the end of its output.
        """
        print(f"$ {' '.join(command)}", flush=True)
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        output = "".join(lines)
        if status := process.wait():
            raise CheckError(f"status {status} of {command[1:4]}: …{output[-_END:]}")
        return output

    def tests(self, *arguments: str) -> None:
        """The project's own tests: run on the GPU, without one collected.

        Raises:
            CheckError: one failed, or none ran.
        """
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        try:
            self.cuda()
        except NoCudaDeviceError:
            collected = self.run([*command, "--collect-only"])
            self.figures["collected"] = sum("::" in line for line in collected.splitlines())
            raise
        summary = self.run(command).strip().splitlines()[-1]
        self.figures["tests"] = summary.strip("= ")
        if " passed" not in summary:
            raise CheckError(f"no test passed: {summary}")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a call's table."""

    name: str
    seconds: int
    """Its share of the call's time; it is ended after that."""
    run: Callable[[Bench], None]
    """Raises where something is not as expected."""


@dataclass(frozen=True, slots=True)
class Call:
    """Checks that belong together and fit into some minutes."""

    number: int
    title: str
    minutes: int
    teaches: str
    """Where to look when it fails."""
    checks: tuple[Check, ...]


def on_processor() -> bool:
    """True if the trainings run without a GPU."""
    return os.environ.get(ON_PROCESSOR) == "1"


def end_tree(number: int) -> None:
    """Kills a process and all that it has started, whatever their sessions, and waits until they are gone:
    what lives on keeps the GPU's memory."""
    try:
        tree = [psutil.Process(number), *psutil.Process(number).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(tree, timeout=_GONE_S)


def expect(holds: bool, what: str) -> None:
    """Raises CheckError where it does not hold."""
    if not holds:
        raise CheckError(what)
