"""Kill a real training run with segments and overlap at random moments, and check what its resumes leave.

    python -m benchmarks.kill_and_resume                # 20 kills -9, half an hour
    python -m benchmarks.kill_and_resume --kills 3 --steps 8

The command's process group is killed some seconds after its start (workers and engine, which have sessions of
their own, get the same signal from the kernel when their parent dies), at times before it has resumed; then
it is started again. In the end every step must be recorded once; every sample must be there once, in a whole
group; every sample of a group with unlike rewards must have been trained once, and no other one; and every
problem that was taken from the data must have its Solver group among the completed ones or in the last
checkpoint. The same run without a kill follows, and the two are compared token by token
(`marsrl.run.seeded_tokens=all`). They may part where rounding tips a draw: the engine's last digits depend on
which requests decode together. With a scripted engine that cannot happen, and the same is a test
(`tests/verl_adapter/test_overlap.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import machine
from benchmarks.training_runs import command, steps, train
from marsrl_verl.core.trajectory import FinishReason

SETTINGS = (
    "pipeline=overlapped",
    "marsrl.pipeline.max_segments=4",
    "marsrl.pipeline.min_group=2",
    "data.train_batch_size=4",
    "trainer.save_freq=1",
    "marsrl.run.seeded_tokens=all",
)
_COMPARED = ("group", "parent", "prompt", "token_ids", "versions", "finish_reason", "reward", "problem")
"""What two rows of one sample must have in common: all but times and the engine's last digits."""


@dataclass(slots=True)
class Attempts:
    """What happened on the way."""

    kills: int = 0
    starts: int = 0
    before_training: int = 0
    """Kills that met a process which had not trained a step since its start."""
    at_steps: list[int] = field(default_factory=list)
    """The last recorded step at every kill."""


def recorded(folder: Path) -> int:
    """The last step whose metrics are there; a cut line does not count."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return 0
    return max(
        (json.loads(line)["step"] for line in path.read_text().splitlines() if line.endswith("}")), default=0
    )


def kill_and_resume(root: Path, count: int, kills: int, moments: tuple[float, float], seed: int) -> Attempts:
    """Starts and kills until `kills` kills are done, then lets the run end.

    Args:
        root: where the run's folder lies.
        count: training steps.
        kills: how many.
        moments: least and most seconds from a start to its kill.
        seed: of the moments.

    Raises:
        RuntimeError: a start failed by itself, or the run ended before all kills were done.
    """
    rng, found, folder = random.Random(seed), Attempts(), root / "killed"
    while True:
        found.starts += 1
        before = recorded(folder)
        log = root / f"attempt_{found.starts}.log"
        overrides = [*SETTINGS, f"trainer.total_training_steps={count}"]
        if (folder / "config.yaml").exists():
            overrides.append("marsrl.run.if_exists=resume")
        elif folder.exists():
            overrides.append("marsrl.run.if_exists=replace")
        with log.open("w") as stream:
            process = subprocess.Popen(
                command(root, "killed", *overrides),
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            wait = rng.uniform(*moments) if found.kills < kills else None
            try:
                status = process.wait(timeout=wait)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                time.sleep(2.0)  # Ray's processes end when their parent is gone
                after = recorded(folder)
                found.kills += 1
                found.at_steps.append(after)
                found.before_training += after <= before
                print(f"kill {found.kills} after {wait:.0f} s, at step {after} of {count}", flush=True)
                continue
        if status != 0:
            end = log.read_text()[-4000:]
            raise RuntimeError(f"attempt {found.starts} ended with status {status}:\n{end}")
        if found.kills < kills:
            raise RuntimeError(f"the run ended after {found.kills} of {kills} kills: give it more --steps")
        return found


def check(folder: Path, count: int) -> dict[str, int]:
    """Counts of the finished run.

    Raises:
        AssertionError: a step, a problem or a sample is missing or there twice.
    """
    numbers = [step.number for step in steps(folder)]
    assert numbers == list(range(1, count + 1)), f"recorded steps: {numbers}"
    samples: Counter[str] = Counter()
    members: Counter[str] = Counter()
    trained: Counter[str] = Counter()
    rewards: dict[str, dict[str, float]] = {}
    parents: set[str] = set()
    for number in numbers:
        trained.update(list(json.loads((folder / f"trained/step_{number}.json").read_text())))
        for line in (folder / f"rollouts/step_{number}.jsonl").read_text().splitlines():
            row = json.loads(line)
            samples[row["trajectory"]] += 1
            if not FinishReason(row["finish_reason"]).failed:  # failed ones are neither trained nor compared
                rewards.setdefault(row["group"], {})[row["trajectory"]] = row["reward"]
            members[row["group"]] += 1
            parents |= {row["parent"]} if row["parent"] else set()
            ends = [end for end, _ in row["versions"]]
            assert ends == sorted(ends) and ends[-1] == row["tokens"], (
                f"{row['trajectory']}: {row['versions']}"
            )
    twice = [name for name, times in samples.items() if times > 1]
    assert not twice, f"samples that are there twice: {twice[:5]}"
    broken = [name for name, size in members.items() if size != max(members.values())]
    assert not broken, f"groups without all of their samples: {broken[:5]}"
    orphans = sorted(parents - set(samples))
    assert not orphans, f"inputs were made of samples that are not there: {orphans[:5]}"
    state = torch.load(folder / f"checkpoints/global_step_{count}/marsrl.pt", weights_only=False)
    pools = state["scheduler"]["state"]
    open_groups = set(pools["ready_step"]) | set(pools["pending"])
    both = sorted(open_groups & set(members))
    assert not both, f"groups that are completed and waiting: {both[:5]}"
    repeated = [name for name, times in trained.items() if times > 1]
    assert not repeated, f"samples that were trained twice: {repeated[:5]}"
    # Parts of groups that are still open were trained ahead of them.
    complete = {name for name in trained if name.rpartition("#")[0] in members}
    expected = {name for group in rewards.values() if len(set(group.values())) > 1 for name in group}
    assert complete == expected, f"trained and not to be, or the reverse: {sorted(complete ^ expected)[:5]}"
    taken = state["problems"]["taken"]
    there = {name.partition("/")[0] for name in [*members, *open_groups] if "/solver/" in name}
    missing = [number for number in range(taken) if f"p{number:08d}" not in there]
    assert not missing, f"problems that were taken and are nowhere: {missing[:5]}"
    return {
        "steps": count,
        "samples": len(samples),
        "trained": len(trained),
        "groups": len(members),
        "problems": taken,
    }


def first_difference(one: Path, other: Path, count: int) -> tuple[int, str] | None:
    """The first step in which two runs differ, and in what; None if in nothing.

    Samples are compared by id, and which of them were trained.
    """
    for number in range(1, count + 1):
        left, right = (_rows(folder, number) for folder in (one, other))
        if left.keys() != right.keys():
            return number, f"samples {sorted(left.keys() ^ right.keys())[:3]}"
        for name, row in left.items():
            unlike = [key for key in _COMPARED if row[key] != right[name][key]]
            if unlike:
                return number, f"{', '.join(unlike)} of {name}"
        trained = [
            json.loads((folder / f"trained/step_{number}.json").read_text()) for folder in (one, other)
        ]
        if trained[0] != trained[1]:
            return number, "what was trained"
    return None


def _rows(folder: Path, number: int) -> dict[str, dict[str, Any]]:
    lines = (folder / f"rollouts/step_{number}.jsonl").read_text().splitlines()
    return {row["trajectory"]: row for row in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--earliest", type=float, default=1.0, help="least seconds from a start to its kill")
    parser.add_argument("--latest", type=float, default=90.0, help="most; a start takes 30 to 50")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(machine(), flush=True)
    root = Path(tempfile.mkdtemp(prefix="marsrl-kills-"))
    moments = (arguments.earliest, arguments.latest)
    found = kill_and_resume(root, arguments.steps, arguments.kills, moments, arguments.seed)
    counts = check(root / "killed", arguments.steps)
    print(
        f"{found.kills} kills in {found.starts} starts, {found.before_training} of them before the start "
        f"had trained a step\n{counts['steps']} steps, each recorded once; {counts['problems']} problems "
        f"taken, all there; {counts['samples']} samples in {counts['groups']} whole groups, "
        f"none twice; {counts['trained']} samples trained, each once",
        flush=True,
    )
    uninterrupted = train(root, "whole", *SETTINGS, f"trainer.total_training_steps={arguments.steps}")
    parting = first_difference(root / "killed", uninterrupted, arguments.steps)
    if parting is None:
        print("an uninterrupted run has the same samples in the same steps, token by token")
    else:
        number, what = parting
        print(f"an uninterrupted run has the same samples until step {number - 1}; then they part: {what}")


if __name__ == "__main__":
    main()
