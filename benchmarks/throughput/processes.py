"""Processor time of the processes of a run, by what they do."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

TAG = "MARSRL_THROUGHPUT_RUN"
"""Environment variable that marks the processes of one measuring process."""
_TICKS = os.sysconf("SC_CLK_TCK")
_KINDS = (
    # The first pattern found in a process's command line gives its kind.
    # A fork of the template process keeps its command line; beside the driver there is one that works.
    ("engine core", r"EngineCore|VLLM::|template\.preload|multiprocessing"),
    ("engine's front end", r"ray::.*(?:vLLM|Server)"),
    ("agent-loop worker", r"ray::.*AgentLoopWorker"),
    ("reward worker", r"ray::.*Reward"),
    ("load balancer", r"ray::.*LoadBalancer"),
    ("grader", r"grade_worker"),
    ("trainer's ranks", r"ray::.*Worker"),
    ("Ray's own processes", r"gcs_server|raylet|dashboard|Dashboard|RuntimeEnvAgent|monitor\.py|ray::"),
)


def processor_seconds(tag: str) -> dict[tuple[int, str], float]:
    """User and system time so far of every process whose environment carries the tag, and of this one, by
    process number and kind."""
    found: dict[tuple[int, str], float] = {}
    needle = f"{TAG}={tag}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        folder = Path("/proc") / name
        try:
            if int(name) != os.getpid() and needle not in (folder / "environ").read_bytes():
                continue
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended meanwhile, or another user's
        kind = "driver" if int(name) == os.getpid() else kind_of(words)
        found[int(name), kind] = (int(stat[11]) + int(stat[12])) / _TICKS
    return found


def spent(
    before: Mapping[tuple[int, str], float], after: Mapping[tuple[int, str], float]
) -> dict[str, float]:
    """Processor seconds between two looks, by kind of process."""
    by_kind: dict[str, float] = defaultdict(float)
    for (process, kind), seconds in after.items():
        by_kind[kind] += seconds - before.get((process, kind), 0.0)
    return {kind: seconds for kind, seconds in by_kind.items() if seconds > 0}


def kind_of(command_line: str) -> str:
    """What a process does, by its title."""
    for kind, pattern in _KINDS:
        if re.search(pattern, command_line):
            return kind
    return "other"
