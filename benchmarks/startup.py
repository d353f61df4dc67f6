"""How long a run takes from its command to the end of its first training step, and where the time goes.

    python -m benchmarks.startup                # three runs with the template process, three without
    python -m benchmarks.startup --repeat 1 --variants template -- trainer.n_gpus_per_node=2

Arguments after `--` are overrides of the run. Wall time depends on what else the machine does; the
processor time (user + system, all processes of the run) depends on it far less, so both are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.processes import Process, kind_of, tagged_processes
from benchmarks.training_runs import machine

TAG = "MARSRL_STARTUP_BENCHMARK"
VARIANTS = {
    "template": ["marsrl.run.template_process=true"],
    "fresh": ["marsrl.run.template_process=false"],
}
POLL_SECONDS = 0.25
KINDS = (
    # The first pattern found in a process's command line or name gives its kind.
    ("launcher", r"recipe\.marsrl\.main_marsrl"),
    ("vLLM engine core", r"EngineCore"),
    ("vLLM worker", r"VLLM::Worker"),
    ("Ray: server processes", r"gcs_server|raylet/raylet|dashboard|Dashboard|RuntimeEnvAgent|monitor\.py"),
    ("Ray: idle workers", r"ray::IDLE"),
    ("Ray workers", r"ray::"),
    ("template process and its untitled forks (driver)", r"template\.preload"),
    ("stand-ins and their set-up", r"template/client\.py|template/python|setup_worker"),
)


@dataclass
class Measurement:
    """One start."""

    wall: float
    cpu_by_kind: dict[str, float]
    milestones: dict[str, float] = field(default_factory=dict)
    """Seconds after the command at which something was first seen."""

    @property
    def cpu(self) -> float:
        return sum(self.cpu_by_kind.values())


def measure(overrides: list[str], timeout: float) -> Measurement:
    """Start a run of one step and follow it to the end of that step.

    Raises:
        RuntimeError: the run ended, or the time was over, before the first step was done.
    """
    tag = uuid.uuid4().hex
    root = Path(tempfile.mkdtemp(prefix="marsrl-startup-"))
    command = [sys.executable, "-m", "recipe.marsrl.main_marsrl", "cluster=cpu", "name=startup"]
    command += [f"marsrl.run.output_root={root}", "trainer.total_training_steps=1"]
    command += ["marsrl.evaluation.before=false", "marsrl.evaluation.after=false", *overrides]
    log = (root / "output.txt").open("w+")
    seen: dict[tuple[int, int], Process] = {}
    milestones: dict[str, float] = {}
    start = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, TAG: tag}, stdout=log, stderr=log)
    metrics = root / "startup" / "metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            if process.poll() is not None or time.monotonic() - start > timeout:
                log.seek(0)
                raise RuntimeError(f"no training step after {time.monotonic() - start:.0f} s:\n{log.read()}")
            look(tag, seen)
            for one in seen.values():
                milestones.setdefault(kind_of(one.command_line, KINDS), time.monotonic() - start)
            time.sleep(POLL_SECONDS)
        wall = time.monotonic() - start
        look(tag, seen)
        process.wait(timeout=timeout)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
        log.close()
        shutil.rmtree(root)
    by_kind: dict[str, float] = {}
    for one in seen.values():
        kind = kind_of(one.command_line, KINDS)
        by_kind[kind] = by_kind.get(kind, 0.0) + one.seconds
    return Measurement(wall, by_kind, milestones)


def look(tag: str, seen: dict[tuple[int, int], Process]) -> None:
    """Update what is known of the run's processes; those that have ended keep their last state."""
    known = {number for number, _ in seen}
    seen.update({(one.number, one.started): one for one in tagged_processes(TAG, tag, known)})


def table(results: dict[str, list[Measurement]]) -> str:
    """Wall and processor time by variant, then processor time by kind of process."""
    lines = []
    for variant, runs in results.items():
        wall, cpu = [run.wall for run in runs], [run.cpu for run in runs]
        lines.append(
            f"{variant:10s} start to end of first step: {statistics.median(wall):6.1f} s wall "
            f"({', '.join(f'{one:.0f}' for one in wall)}), {statistics.median(cpu):6.1f} CPU seconds "
            f"({', '.join(f'{one:.0f}' for one in cpu)})"
        )
        kinds = sorted({kind for run in runs for kind in run.cpu_by_kind})
        for kind in kinds:
            seconds = statistics.median(run.cpu_by_kind.get(kind, 0.0) for run in runs)
            first = [run.milestones[kind] for run in runs if kind in run.milestones]
            lines.append(
                f"    {kind:50s} {seconds:6.1f} CPU seconds, first seen at {statistics.median(first):5.1f} s"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs per variant, interleaved")
    parser.add_argument("--variants", nargs="+", choices=sorted(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per run")
    arguments, overrides = parser.parse_known_args()
    overrides = [one for one in overrides if one != "--"]
    print(machine(), flush=True)
    results: dict[str, list[Measurement]] = {variant: [] for variant in arguments.variants}
    for number in range(arguments.repeat):
        for variant in arguments.variants:
            one = measure([*VARIANTS[variant], *overrides], arguments.timeout)
            results[variant].append(one)
            print(f"run {number + 1} {variant}: {one.wall:.1f} s wall, {one.cpu:.1f} CPU seconds", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
