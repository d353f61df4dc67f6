"""What LoRA adapters and whole models for several policies take, and whether engines have what was trained.

    python -m benchmarks.policies                       # three runs, twice
    python -m benchmarks.policies --repeat 1 --steps 4 --json policies.json

MarsRL's Solver and Corrector are one policy and its Verifier another. Each way of keeping their weights
trains the same number of steps of the tiny model with real Ray, FSDP2 and vLLM; the policies take turns, so
that the `off_policy/` metrics of a step are those of one policy: how far the trainer's log-probabilities of
the sampled tokens are from the engine's, before the policy's first step and after each. Runs take turns too,
every other repetition in reverse. Memory is the proportional set size (pages that processes share count once)
of all processes of a run, at its largest from the first step on. In the end the adapters' folders of a
checkpoint are read by transformers with peft and by vLLM, and compared.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.checkouts import environment
from benchmarks.processes import kind_of, proportional_bytes, tagged_processes
from benchmarks.record import HERE, machine, options, with_overrides, write_json
from benchmarks.tables import table
from benchmarks.taking_turns import whose_turn
from benchmarks.throughput.processes import KINDS
from benchmarks.training_runs import Step, command, steps

TAG = "MARSRL_POLICIES_BENCHMARK"
"""Environment variable that marks the processes of one run."""
JUDGE, ANSWERS = "judge", "shared"
MODES: dict[str, tuple[str, ...]] = {
    "one model": ("actor_rollout_ref.actor.optim.lr=0.003",),
    "an adapter each": (
        "policies=lora",
        "actor_rollout_ref.model.lora_rank=8",
        f"marsrl.policies.{JUDGE}.kind=lora",
        f"marsrl.roles.verifier.policy={JUDGE}",
        "actor_rollout_ref.actor.optim.lr=0.01",
    ),
    "a model each": (
        f"marsrl.policies.{JUDGE}.kind=model",
        f"marsrl.roles.verifier.policy={JUDGE}",
        "actor_rollout_ref.actor.optim.lr=0.003",
    ),
}
COMMON = (
    "algo=marsrl",
    "marsrl.algo.name=benchmarks.taking_turns:TakingTurns",
    "marsrl.algo.correction_rounds=1",
    "pipeline=sequential",
    "data.train_batch_size=8",
    # The whole rate from the first update on, so that few steps change enough.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
)
PHASES = ("gen", "old_log_prob", "update_actor", "update_weights")
WHERE = {"trainer's ranks": "ranks", "engine core": "engines", "engine's front end": "engines"}
"""Kinds of processes whose memory has a column."""
POLL_SECONDS = 0.25
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Agreement:
    """Engine and trainer on the tokens that one step trains."""

    step: int
    policy: str
    updates: int
    """Of the policy before it sampled them."""
    log_ratio_abs_mean: float
    """Mean of |log p(trainer) - log p(engine)|, nats."""
    ratio_min: float
    ratio_max: float


@dataclass(frozen=True, slots=True)
class Row:
    """One run."""

    mode: str
    repeat: int
    seconds: float
    """Of a step, median without the first."""
    phases: dict[str, float]
    """The same by phase."""
    tokens: float
    """Generated tokens of a step, median without the first."""
    mib: dict[str, float]
    """Of all processes (`all`), of the trainer's ranks and of the engines, each at its largest."""
    checkpoint_mib: float
    """Weights, moments and schedules."""
    agreement: list[Agreement]


def agreement_of(recorded: Iterable[Step], policies: Iterable[str]) -> list[Agreement]:
    """Of the steps that trained, the fresh tokens."""
    names, found = list(policies), []
    updates = dict.fromkeys(names, 0)
    for step in recorded:
        name, metrics = whose_turn(step.number, names), step.metrics
        if metrics.get("training/updated"):
            figures = [
                metrics[f"off_policy/{key}"] for key in ("age/0/log_ratio_abs_mean", "ratio_min", "ratio_max")
            ]
            found.append(Agreement(step.number, name, updates[name], *figures))
            updates[name] += 1
    return found


class MemoryWatch:
    """Looks at the memory of a run's processes until `stop`.

    Args:
        tag: of the run.
        begun: exists with something in it as soon as it counts.
    """

    def __init__(self, tag: str, begun: Path) -> None:
        self._tag, self._begun = tag, begun
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peaks: dict[str, int] = {}
        self._thread.start()

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            if self._begun.exists() and self._begun.stat().st_size:
                note_peaks(self.peaks, memory_now(self._tag))

    def stop(self) -> dict[str, float]:
        """The peaks in MiB."""
        self._over.set()
        self._thread.join()
        return {name: size / MIB for name, size in self.peaks.items()}


def memory_now(tag: str) -> dict[str, int]:
    """Bytes of a run's processes, all together and by place."""
    found = {"all": 0}
    for process in tagged_processes(TAG, tag):
        size = proportional_bytes(process.number)
        place = WHERE.get(kind_of(process.command_line, KINDS))
        found["all"] += size
        if place is not None:
            found[place] = found.get(place, 0) + size
    return found


def note_peaks(peaks: dict[str, int], now: Mapping[str, int]) -> None:
    """Keeps the larger of each."""
    for name, size in now.items():
        peaks[name] = max(size, peaks.get(name, 0))


def run(mode: str, repeat: int, count: int, root: Path, overrides: list[str]) -> tuple[Row, Path]:
    """One training run, and its folder.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    name, tag = f"{mode.replace(' ', '-')}-{repeat}", uuid.uuid4().hex
    words = (
        *COMMON, *MODES[mode], f"trainer.total_training_steps={count}", f"trainer.save_freq={count}",
        f"marsrl.run.seed={1 + repeat}", *overrides,
    )  # fmt: skip
    log, folder = root / f"{name}.log", root / name
    with log.open("w") as stream:
        watch = MemoryWatch(tag, folder / "metrics.jsonl")
        try:
            done = subprocess.run(
                command(root, name, *words), cwd=HERE, env={**environment(HERE), TAG: tag}, check=False,
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            )  # fmt: skip
        finally:
            memory = watch.stop()
    if done.returncode != 0:
        raise RuntimeError(f"run {name} ended with status {done.returncode}:\n{log.read_text()[-4000:]}")
    recorded = steps(folder)
    policies = [ANSWERS] if mode == "one model" else [ANSWERS, JUDGE]
    saved = folder / f"checkpoints/global_step_{count}/actor"
    return (
        Row(
            mode=mode,
            repeat=repeat,
            seconds=_median(recorded, "step"),
            phases={phase: _median(recorded, phase) for phase in PHASES},
            tokens=statistics.median(step.metrics["rollout/generated_tokens"] for step in recorded[1:]),
            mib=memory,
            checkpoint_mib=sum(path.stat().st_size for path in saved.rglob("*.pt")) / MIB,
            agreement=agreement_of(recorded, policies),
        ),
        folder,
    )


def _median(recorded: list[Step], phase: str) -> float:
    return statistics.median(step.timings.get(phase, 0.0) for step in recorded[1:])


def tables(rows: list[Row]) -> str:
    """Time and memory by mode (medians of the runs), then the agreement by policy and update."""
    lines = []
    for mode in (mode for mode in MODES if any(row.mode == mode for row in rows)):
        mine = [row for row in rows if row.mode == mode]
        lines.append(
            [mode, f"{statistics.median(row.seconds for row in mine):.2f}"]
            + [f"{statistics.median(row.phases[phase] for row in mine):.2f}" for phase in PHASES]
            + [f"{statistics.median(row.tokens for row in mine):,.0f}"]
            + [
                f"{statistics.median(row.mib.get(place, 0.0) for row in mine):,.0f}"
                for place in ("all", "ranks", "engines")
            ]
            + [f"{statistics.median(row.checkpoint_mib for row in mine):.2f}"]
        )
    head = ["weights", "s/step", *PHASES, "tokens", "MiB", "ranks", "engines", "checkpoint MiB"]
    parts = [table(head, lines)]
    ratios = [
        [row.mode, one.policy, str(one.updates), f"{one.log_ratio_abs_mean:.1e}",
         f"{one.ratio_min:.5f}", f"{one.ratio_max:.5f}"]
        for row in rows
        if row.repeat == 0
        for one in row.agreement
    ]  # fmt: skip
    parts.append(
        table(
            ["weights", "policy", "updates before", "log ratio, mean size", "ratio min", "ratio max"], ratios
        )
    )
    return "\n\n".join(parts)


def read_adapters(folder: Path, count: int) -> dict[str, dict[str, float]]:
    """What transformers with peft and vLLM make of the adapters' folders of a run's last checkpoint
    (`benchmarks.exported_adapters`)."""
    found = folder / "read.json"
    command = [sys.executable, "-m", "benchmarks.exported_adapters", str(folder), str(count), str(found)]
    done = subprocess.run(
        command, cwd=HERE, env=environment(HERE), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the adapters of {folder} can't be read:\n{(done.stdout + done.stderr)[-4000:]}")
    content: dict[str, dict[str, float]] = json.loads(found.read_text())
    return content


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=6, help="of each run")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each mode, interleaved")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    arguments, overrides = with_overrides(parser)
    place = machine()
    rows: list[Row] = []
    adapters: dict[str, dict[str, float]] = {}
    print(place, flush=True)
    root = Path(tempfile.mkdtemp(prefix="marsrl-policies-"))
    try:
        for repeat in range(arguments.repeat):
            for mode in arguments.modes if repeat % 2 == 0 else arguments.modes[::-1]:
                began = time.monotonic()
                row, folder = run(mode, repeat, arguments.steps, root, overrides)
                rows.append(row)
                print(f"repetition {repeat + 1}: {mode}, {time.monotonic() - began:.0f} s", flush=True)
                if mode == "an adapter each" and not adapters:
                    adapters = read_adapters(folder, arguments.steps)
        settings = {key: value for key, value in vars(arguments).items() if key != "json"}
        record = {
            "machine": place,
            "settings": settings | {"overrides": overrides},
            "rows": [asdict(row) for row in rows],
            "adapters": adapters,
        }
        write_json(arguments.json, record)
    finally:
        shutil.rmtree(root)
    print(tables(rows))
    for policy, figures in adapters.items():
        differences = ", ".join(f"{name} {value:.2g}" for name, value in figures.items())
        print(f"exported adapter {policy}: {differences}")


if __name__ == "__main__":
    main()
