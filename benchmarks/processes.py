"""The processes of a run, found by a variable in their environment, and their processor time."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it was seen."""

    number: int
    started: int
    """In clock ticks since the machine started; with the number it names the process for good."""
    command_line: str
    seconds: float
    """User and system time so far."""


def tagged_processes(variable: str, tag: str, known: Collection[int] = ()) -> Iterator[Process]:
    """Processes whose environment began with `variable=tag`, and those whose number is `known`."""
    needle = f"{variable}={tag}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        folder = Path("/proc") / name
        try:
            if int(name) not in known and needle not in (folder / "environ").read_bytes():
                continue
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile, or another user's
        yield Process(int(name), int(stat[19]), words, (int(stat[11]) + int(stat[12])) / _TICKS)


def kind_of(command_line: str, kinds: Sequence[tuple[str, str]]) -> str:
    """The name of the first (name, pattern) whose pattern is in the command line; `other` where none is."""
    return next((kind for kind, pattern in kinds if re.search(pattern, command_line)), "other")


def proportional_bytes(number: int) -> int:
    """Memory of a process, a page that several processes share in equal parts; 0 where it has ended."""
    try:
        lines = (Path("/proc") / str(number) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
