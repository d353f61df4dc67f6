"""How long a run takes from its command to the end of its first training step, and where the time goes.

    python -m benchmarks.startup                # three runs with the template process, three without
    python -m benchmarks.startup --repeat 1 --variants template -- trainer.n_gpus_per_node=2
    python -m benchmarks.startup --compare OLD NEW --variants template      # two checkouts in turn

Arguments after `--` are overrides of the run. Wall time depends on what else the machine does; the
processor time (user + system, all processes of the run) depends on it far less, so both are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.checkouts import AFTER, BEFORE, environment, in_turn, require_package
from benchmarks.processes import Process, kind_of, tagged_processes
from benchmarks.record import commit, machine
from benchmarks.tables import table, with_interval

TAG = "MARSRL_STARTUP_BENCHMARK"
HERE = Path(__file__).parent.parent
VARIANTS = {
    "template": ["marsrl.run.fork_server=true"],
    "fresh": ["marsrl.run.fork_server=false"],
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


def measure(overrides: list[str], timeout: float, tree: Path = HERE) -> Measurement:
    """Starts a checkout's run of one step and follows it to the end of that step.

    Raises:
        RuntimeError: the run ended, or the time was over, before the first step was done.
    """
    tag = uuid.uuid4().hex
    root = Path(tempfile.mkdtemp(prefix="marsrl-startup-"))
    command = [sys.executable, "-m", "recipe.marsrl.main_marsrl", "cluster=cpu", "name=startup"]
    command += [f"marsrl.run.output_root={root}", "trainer.total_training_steps=1", "trainer.logger=[]"]
    command += ["marsrl.evaluation.before=false", "marsrl.evaluation.after=false", *overrides]
    log = (root / "output.txt").open("w+")
    seen: dict[tuple[int, int], Process] = {}
    milestones: dict[str, float] = {}
    start = time.monotonic()
    variables = {**environment(tree), TAG: tag}
    process = subprocess.Popen(command, cwd=tree, env=variables, stdout=log, stderr=log)
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


Results = dict[tuple[str, str], list[Measurement]]
"""By variant and checkout, in the order of the runs."""


def look(tag: str, seen: dict[tuple[int, int], Process]) -> None:
    """Updates what is known of the run's processes; those that have ended keep their last state."""
    known = {number for number, _ in seen}
    seen.update({(one.number, one.started): one for one in tagged_processes(TAG, tag, known)})


def listing(results: dict[str, list[Measurement]]) -> str:
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


def comparison(results: Results, variants: list[str]) -> str:
    """Wall and processor time of two checkouts, and the ratios of their pairs."""
    lines = []
    for variant in variants:
        pairs = list(zip(results[variant, BEFORE], results[variant, AFTER], strict=True))
        kinds = sorted({kind for pair in pairs for run in pair for kind in run.cpu_by_kind})
        figures: dict[str, list[tuple[float, float]]] = {
            "wall, s": [(old.wall, new.wall) for old, new in pairs],
            "CPU, s": [(old.cpu, new.cpu) for old, new in pairs],
        }
        for kind in kinds:
            figures[f"CPU, s: {kind}"] = [
                (old.cpu_by_kind.get(kind, 0.0), new.cpu_by_kind.get(kind, 0.0)) for old, new in pairs
            ]
        for name, values in figures.items():
            ratios = [new / old for old, new in values if old]
            lines.append(
                [
                    f"{variant}: {name}",
                    *(with_interval(list(side), 1, 1) for side in zip(*values, strict=True)),
                    with_interval(ratios, 3, 1) if ratios else "",
                    ", ".join(f"{one:.2f}" for one in ratios),
                ]
            )
    return table(["", BEFORE, AFTER, f"{AFTER} / {BEFORE}", "each pair"], lines)


def measured(
    arguments: argparse.Namespace, overrides: list[str], trees: dict[str, Path], begun: int
) -> Results:
    """The runs from number `begun` on, in turn."""
    results: Results = defaultdict(list)
    for number in range(begun, begun + arguments.repeat):
        for variant in arguments.variants:
            for name in in_turn(trees, number):
                one = measure([*VARIANTS[variant], *overrides], arguments.timeout, trees[name])
                results[variant, name].append(one)
                label = f"{variant}, {name}" if len(trees) == 2 else variant
                print(
                    f"run {number + 1} {label}: {one.wall:.1f} s wall, {one.cpu:.1f} CPU seconds, load "
                    f"{os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    return results


def read(path: Path) -> tuple[list[str], Results]:
    """Machines and runs of earlier sessions; none without the file."""
    results: Results = defaultdict(list)
    if not path.exists():
        return [], results
    content = json.loads(path.read_text())
    for one in content["runs"]:
        results[one.pop("variant"), one.pop("checkout")].append(Measurement(**one))
    return content["sessions"], results


def write(path: Path, sessions: list[str], results: Results) -> None:
    """What `read` reads."""
    runs = [
        {"variant": variant, "checkout": name, **asdict(one)}
        for (variant, name), found in results.items()
        for one in found
    ]
    path.write_text(json.dumps({"sessions": sessions, "runs": runs}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--repeat", type=int, default=3, help="runs per variant, interleaved")
    add("--variants", nargs="+", choices=sorted(VARIANTS), default=list(VARIANTS))
    add("--timeout", type=float, default=600.0, help="seconds per run")
    add("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"), help="two checkouts")
    add("--json", type=Path, help="write all runs here")
    add("--append", action="store_true", help="go on with the runs that --json holds")
    arguments, overrides = parser.parse_known_args()
    overrides = [one for one in overrides if one != "--"]
    trees = dict(zip((BEFORE, AFTER), arguments.compare or [HERE], strict=False))
    trees = {name: tree.resolve() for name, tree in trees.items()}
    place = machine()
    for name, tree in trees.items():
        require_package(tree)
        place += f"\n{name}: {commit(tree)}" if len(trees) == 2 else ""
    print(place, flush=True)
    if arguments.append and arguments.json is None:
        parser.error("--append needs --json")
    sessions, results = read(arguments.json) if arguments.append else ([], defaultdict(list))
    begun = max(map(len, results.values()), default=0)
    for key, found in measured(arguments, overrides, trees, begun).items():
        results[key] += found
    if arguments.json is not None:
        write(arguments.json, [*sessions, place], results)
    for name in trees:
        print(name if len(trees) == 2 else "")
        print(listing({variant: results[variant, name] for variant in arguments.variants}))
    if len(trees) == 2:
        print(comparison(results, arguments.variants))


if __name__ == "__main__":
    main()
