"""How long the same work takes in each way of spreading stages over steps, with real Ray, FSDP2 and vLLM.

    python -m benchmarks.pipeline_modes                        # 4 and 32 problems per step, twice each
    python -m benchmarks.pipeline_modes --problems 4 --repeat 1 --json rows.json
    python -m benchmarks.pipeline_modes --problems 4 --steps 12 --uneven 2.8     # long, uneven responses
    python -m benchmarks.pipeline_modes --modes sequential pipelined -- algo=attnrl \
        marsrl.algo.attnrl.delta=1 marsrl.algo.attnrl.adaptive_batch.enabled=false

Every mode trains the same method until the same number of samples is trained, whatever their stage: a
pipeline that fills has trained more of the first stages, whose prompts are short. The time runs from the
start of the first step, so filling the pipeline is part of it. The step in which the number is reached counts
in part. Updates are computed with a learning rate of 0: a policy that improves leaves ever fewer groups to
train. Modes take turns, one process after another on the same machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import uneven_lengths
from benchmarks.training_runs import Step, machine, steps, train
from marsrl_verl.config.tiny_files import tiny_model

MODES: dict[str, tuple[str, ...]] = {
    "sequential": ("pipeline=sequential",),
    "pipelined": ("pipeline=pipelined",),
    "pipelined + segments": ("pipeline=pipelined", "marsrl.pipeline.max_segments=4"),
    "pipelined + segments + overlap": ("pipeline=overlapped", "marsrl.pipeline.max_segments=4"),
}
PHASES = ("gen", "mark", "old_log_prob", "update_actor", "update_weights")
EXTRA_STEPS = 9
"""Steps that a pipelined run is given beyond those of the sequential one: five stages of four segments fill
slowly, and a budget that is too small is an error, not a result."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    mode: str
    problems: int
    repeat: int
    samples: int
    """Trained samples at which the clock stops."""
    seconds: float
    steps: float
    phases: dict[str, float]
    """Seconds by phase up to that point; with overlap `gen` is the time that training waited."""


def until(recorded: list[Step], samples: int) -> tuple[float, float, dict[str, float]]:
    """Seconds, steps and seconds by phase until `samples` were trained.

    Raises:
        ValueError: the run trained fewer.
    """
    seconds, trained, phases = 0.0, 0.0, dict.fromkeys(PHASES, 0.0)
    for count, step in enumerate(recorded):
        rows = step.metrics.get("batch/rows", 0.0)
        part = min(1.0, (samples - trained) / rows) if rows else 1.0
        seconds += part * step.timings["step"]
        for phase in PHASES:
            phases[phase] += part * step.timings.get(phase, 0.0)
        trained += part * rows
        if trained >= samples:
            return seconds, count + part, phases
    raise ValueError(f"the run trained {trained:.0f} samples in {len(recorded)} steps, {samples} are needed")


def run(
    mode: str, problems: int, number: int, sequential_steps: int, root: Path, overrides: list[str]
) -> list[Step]:
    """The steps of one training run; rollouts and checkpoints are not written."""
    count = sequential_steps + (0 if mode == "sequential" else EXTRA_STEPS)
    folder = train(
        root,
        f"{mode.replace(' ', '')}-{problems}-{number}",
        *MODES[mode],
        f"data.train_batch_size={problems}",
        f"trainer.total_training_steps={count}",
        f"marsrl.run.seed={1 + number}",
        "trainer.save_freq=-1",
        "actor_rollout_ref.actor.optim.lr=0.0",
        "marsrl.run.log_rollouts=false",
        *overrides,
    )
    return steps(folder)


def table(rows: list[Row]) -> str:
    """Median seconds and the ratio to the sequential run of the same repetition, by size and mode."""
    lines = []
    for problems in sorted({row.problems for row in rows}):
        some = [row for row in rows if row.problems == problems]
        base = {row.repeat: row.seconds for row in some if row.mode == "sequential"}
        lines += [
            f"{problems} problems per step, {some[0].samples} trained samples",
            f"  {'mode':32s} {'seconds':>8s} {'x faster':>16s} {'steps':>6s}  seconds by phase",
        ]
        for mode in MODES:
            mine = [row for row in some if row.mode == mode]
            if not mine:
                continue
            ratios = [base[row.repeat] / row.seconds for row in mine]
            shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            phases = "  ".join(
                f"{phase} {statistics.median(row.phases[phase] for row in mine):.1f}"
                for phase in PHASES
                if any(row.phases[phase] for row in mine)
            )
            seconds = statistics.median(row.seconds for row in mine)
            count = statistics.median(row.steps for row in mine)
            lines.append(f"  {mode:32s} {seconds:8.1f} {shown:>16s} {count:6.1f}  {phases}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="+", type=int, default=[4, 32], help="new problems per step")
    parser.add_argument("--repeat", type=int, default=2, help="runs per mode and size, interleaved")
    parser.add_argument("--steps", type=int, default=6, help="steps of the sequential run")
    parser.add_argument(
        "--uneven",
        type=float,
        metavar="TEMPERATURE",
        help="sample at this temperature with room for long responses (benchmarks/uneven_lengths.py)",
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="sequential first")
    arguments, overrides = parser.parse_known_args()
    overrides = [one for one in overrides if one != "--"]
    if arguments.modes[0] != "sequential":
        parser.error("--modes: the sequential run comes first, it says how many samples the others train")
    place = machine()
    print(place, flush=True)
    rows: list[Row] = []
    root = Path(tempfile.mkdtemp(prefix="marsrl-modes-"))
    try:
        if arguments.uneven is not None:
            model = uneven_lengths.write_rambling_model(Path(tiny_model()), root / "model", arguments.uneven)
            overrides = [*uneven_lengths.overrides(model), *overrides]
        for problems in arguments.problems:
            for number in range(arguments.repeat):
                samples = 0
                for mode in arguments.modes:
                    recorded = run(mode, problems, number, arguments.steps, root, overrides)
                    if mode == "sequential":
                        samples = int(sum(step.metrics.get("batch/rows", 0.0) for step in recorded))
                    seconds, count, phases = until(recorded, samples)
                    rows.append(Row(mode, problems, number, samples, seconds, count, phases))
                    print(f"{problems} problems, {mode}: {seconds:.1f} s, {count:.1f} steps", flush=True)
    finally:
        shutil.rmtree(root)
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": place, "rows": [asdict(row) for row in rows]}, indent=1)
        )


if __name__ == "__main__":
    main()
