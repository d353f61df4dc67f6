"""Processor time of the processes of a run, by what they do."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping

from benchmarks.processes import kind_of, tagged_processes

TAG = "MARSRL_THROUGHPUT_RUN"
"""Environment variable that marks the processes of one measuring process."""
KINDS = (
    # The first pattern found in a process's command line gives its kind.
    # A fork of the template process keeps its command line; beside the driver there is one that works.
    ("engine core", r"EngineCore|VLLM::|template\.preload|multiprocessing"),
    ("engine's front end", r"ray::.*(?:vLLM|Server)"),
    ("rollout worker", r"ray::RolloutWorker"),
    ("verl's agent loops", r"ray::AgentLoopWorker"),
    ("reward worker", r"ray::.*Reward"),
    ("load balancer", r"ray::.*LoadBalancer"),
    ("grader", r"grade_worker"),
    ("trainer's ranks", r"ray::.*Worker"),
    ("Ray's own processes", r"gcs_server|raylet|dashboard|Dashboard|RuntimeEnvAgent|monitor\.py|ray::"),
)


def processor_seconds(tag: str, own: str = "driver") -> dict[tuple[int, str], float]:
    """User and system time so far of every process whose environment carries the tag, and of this one
    (`own`), by process number and kind."""
    return {
        (one.number, own if one.number == os.getpid() else kind_of(one.command_line, KINDS)): one.seconds
        for one in tagged_processes(TAG, tag, known=(os.getpid(),))
    }


def spent(
    before: Mapping[tuple[int, str], float], after: Mapping[tuple[int, str], float]
) -> dict[str, float]:
    """Processor seconds between two looks, by kind of process."""
    by_kind: dict[str, float] = defaultdict(float)
    for (process, kind), seconds in after.items():
        by_kind[kind] += seconds - before.get((process, kind), 0.0)
    return {kind: seconds for kind, seconds in by_kind.items() if seconds > 0}
