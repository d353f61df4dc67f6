"""How long the same work takes in each way of spreading stages over steps, with real Ray, FSDP2 and vLLM.

    python -m benchmarks.pipeline_modes                        # 4 and 32 problems per step, twice each
    python -m benchmarks.pipeline_modes --problems 4 --repeat 1 --json rows.json
    python -m benchmarks.pipeline_modes --problems 4 --steps 12 --uneven 2.8     # long, uneven responses
    python -m benchmarks.pipeline_modes --modes sequential pipelined -- algo=attnrl \
        marsrl.algo.adaptive_batch.enabled=false

Every mode trains the same method until the same number of samples is trained, whatever their stage: a
pipeline that fills has trained more of the first stages, whose prompts are short. The time runs from the
start of the first step, so filling the pipeline is part of it. The step in which the number is reached counts
in part. Updates are computed with a learning rate of 0: a policy that improves leaves ever fewer groups to
train. Modes take turns, one process after another on the same machine, every other repetition in reverse.

A pipeline with segments completes short groups first, so that equal numbers of samples are not equal numbers
of tokens: the second ratio compares trained tokens per second.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import uneven_lengths
from benchmarks.record import machine, options, with_overrides, write_json
from benchmarks.tables import with_interval
from benchmarks.training_runs import Step, steps, train
from marsrl_verl.demo.files import tiny_model

MODES: dict[str, tuple[str, ...]] = {
    "sequential": ("pipeline=sequential",),
    "pipelined": ("pipeline=pipelined",),
    "pipelined + segments": ("pipeline=pipelined", "marsrl.pipeline.max_segments=4"),
    "pipelined + segments + overlap": ("pipeline=overlapped", "marsrl.pipeline.max_segments=4"),
}
PHASES = ("gen", "mark", "old_log_prob", "update_actor", "update_weights")


@dataclass(frozen=True, slots=True)
class Row:
    """One run, up to the point at which its work was done."""

    mode: str
    problems: int
    repeat: int
    samples: int
    """Trained samples at which the clock stops."""
    seconds: float
    steps: float
    tokens: float
    """Trained tokens up to there, prompts included."""
    phases: dict[str, float]
    """Seconds by phase; with overlap `gen` is the time that training waited."""
    work: dict[str, float]
    """What completed in these steps: samples by stage, and of each role the mean and largest length of its
    responses, the share that reached the limit and, of the Verifier, the share without a readable verdict."""


def until(recorded: list[Step], samples: int) -> tuple[float, float, float, dict[str, float]]:
    """Seconds, steps, trained tokens and seconds by phase until `samples` were trained.

    Raises:
        ValueError: the run trained fewer.
    """
    seconds, trained, tokens, phases = 0.0, 0.0, 0.0, dict.fromkeys(PHASES, 0.0)
    for count, step in enumerate(recorded):
        rows = step.metrics.get("batch/rows", 0.0)
        part = min(1.0, (samples - trained) / rows) if rows else 1.0
        seconds += part * step.timings["step"]
        tokens += part * step.metrics.get("batch/tokens", 0.0)
        for phase in PHASES:
            phases[phase] += part * step.timings.get(phase, 0.0)
        trained += part * rows
        if trained >= samples:
            return seconds, count + part, tokens, phases
    raise ValueError(
        f"the run trained {trained:.0f} samples in {len(recorded)} steps, {samples} are needed; raise "
        "--extra-steps"
    )


def work_of(recorded: list[Step]) -> dict[str, float]:
    """Figures of what these steps completed (`Row.work`), means over the samples."""
    found: dict[str, float] = {}
    weights: dict[str, float] = {}
    for step in recorded:
        for name, value in step.metrics.items():
            kind, _, rest = name.partition("/")
            who, _, figure = rest.partition("/")
            count = step.metrics.get(f"role/{who}/samples", 0.0)
            if kind == "stage" and figure == "samples":
                found[f"{who} samples"] = found.get(f"{who} samples", 0.0) + value
            elif kind == "role" and figure == "response_length_max":
                found[f"{who} longest"] = max(found.get(f"{who} longest", 0.0), value)
            elif kind == "role" and figure in _MEANS:
                key = f"{who} {_MEANS[figure]}"
                found[key] = found.get(key, 0.0) + value * count
                weights[key] = weights.get(key, 0.0) + count
    return {key: value / weights[key] if key in weights else value for key, value in sorted(found.items())}


_MEANS = {
    "response_length_mean": "mean length",
    "truncation_frac": "at the limit",
    "invalid_verdict_frac": "without a verdict",
}


def run(mode: str, problems: int, number: int, count: int, root: Path, overrides: list[str]) -> list[Step]:
    """The steps of one training run; rollouts and checkpoints are not written."""
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


def rows_of(runs: dict[str, list[Step]], problems: int, repeat: int) -> list[Row]:
    """One repetition's runs, each up to the number of samples that the sequential one trained."""
    samples = int(sum(step.metrics.get("batch/rows", 0.0) for step in runs["sequential"]))
    rows = []
    for mode in MODES:
        if mode in runs:
            seconds, count, tokens, phases = until(runs[mode], samples)
            work = work_of(runs[mode][: math.ceil(count)])
            rows.append(Row(mode, problems, repeat, samples, seconds, count, tokens, phases, work))
    return rows


def table(rows: list[Row]) -> str:
    """Seconds and the ratios to the sequential run of the same repetition, by size and mode."""
    lines = []
    for problems in sorted({row.problems for row in rows}):
        some = [row for row in rows if row.problems == problems]
        base = {row.repeat: row for row in some if row.mode == "sequential"}
        counts = ", ".join(str(row.samples) for row in base.values())
        lines += [
            f"{problems} problems per step, {counts} trained samples",
            "  times faster: by the time for as many trained samples; by trained tokens per second",
        ]
        for mode in MODES:
            mine = [row for row in some if row.mode == mode]
            if not mine:
                continue
            by_samples = [base[row.repeat].seconds / row.seconds for row in mine]
            rates = [base[row.repeat].tokens / base[row.repeat].seconds for row in mine]
            by_tokens = [row.tokens / row.seconds / rate for row, rate in zip(mine, rates, strict=True)]
            phases = "  ".join(
                f"{phase} {statistics.median(row.phases[phase] for row in mine):.1f}"
                for phase in PHASES
                if any(row.phases[phase] for row in mine)
            )
            lines += [
                f"  {mode}",
                f"    seconds {_listed([row.seconds for row in mine], 1)}; "
                f"steps {_listed([row.steps for row in mine], 1)}",
                f"    times faster {_listed(by_samples, 2)}; {_listed(by_tokens, 2)}",
                f"    seconds by phase, median: {phases}",
                "    first repetition: "
                + "; ".join(f"{name} {value:.3g}" for name, value in mine[0].work.items()),
            ]
    return "\n".join(lines)


def _listed(values: list[float], digits: int) -> str:
    """Every value and, from three on, their mean with half of the 95 % t interval."""
    shown = ", ".join(f"{value:.{digits}f}" for value in values)
    if len(values) < 3:
        return shown
    return f"{shown} ({with_interval(values, digits, 1.0)})"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--problems", nargs="+", type=int, default=[4, 32], help="new problems per step")
    parser.add_argument("--repeat", type=int, default=2, help="runs per mode and size, interleaved")
    parser.add_argument("--steps", type=int, default=6, help="steps of the sequential run")
    parser.add_argument(
        "--uneven",
        type=float,
        metavar="TEMPERATURE",
        help="sample at this temperature with room for long responses (benchmarks/uneven_lengths.py)",
    )
    parser.add_argument(
        "--extra-steps",
        type=int,
        help="steps of the other runs beyond those of the sequential one; a run that trains too little is an "
        "error, not a result (default: 9, with --uneven as many again and 12)",
    )
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=list(MODES), help="sequential among them"
    )
    arguments, overrides = with_overrides(parser)
    if "sequential" not in arguments.modes:
        parser.error("--modes: sequential is needed, it says how many samples the others train")
    extra = arguments.extra_steps
    if extra is None:
        # Five stages fill slowly; four segments of long responses fill four times as slowly.
        extra = 9 if arguments.uneven is None else arguments.steps + 12
    settings = {key: value for key, value in vars(arguments).items() if key != "json"}
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
                runs: dict[str, list[Step]] = {}
                # Every other repetition in reverse, so that no mode always comes first.
                for mode in arguments.modes if number % 2 == 0 else arguments.modes[::-1]:
                    count = arguments.steps + (0 if mode == "sequential" else extra)
                    runs[mode] = run(mode, problems, number, count, root, overrides)
                    print(f"{problems} problems, repetition {number + 1}: {mode} is done", flush=True)
                rows += rows_of(runs, problems, number)
                record = {
                    "machine": place,
                    "settings": settings | {"extra_steps": extra, "overrides": overrides},
                    "rows": [asdict(row) for row in rows],
                }
                write_json(arguments.json, record)
    finally:
        shutil.rmtree(root)
    print(table(rows))


if __name__ == "__main__":
    main()
