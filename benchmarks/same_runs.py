"""Whether two checkouts sample and train the same: short real runs of every method with the same seeds.

    python -m benchmarks.same_runs OLD NEW [--only marsrl arpo …] [--steps 5] [--json FILE]

Each run is started in both checkouts; where they differ, once more in OLD, for what no two runs have in
common. Compared are all tokens, rewards, advantages and metrics but times and what the machine did; metrics
up to the rounding of sums in another order.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.checkouts import environment, require_package
from benchmarks.record import commit, machine, options, write_json

COMMON = (
    "cluster=cpu",
    "trainer.logger=[]",
    "data.train_batch_size=4",
    "marsrl.run.seeded_tokens=all",
    "trainer.save_freq=-1",
    # The whole rate from the first update on, so that few steps change enough.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
)
REMA = ("data=rema_task", "model=tiny_rema")
RUNS: dict[str, tuple[str, ...]] = {
    "marsrl": ("marsrl.algo.group_size=4", "pipeline=sequential"),
    "marsrl_segments": (
        "marsrl.algo.group_size=4",
        "pipeline=pipelined",
        "marsrl.pipeline.max_segments=4",
        "marsrl.pipeline.min_group=2",
    ),
    "attnrl": ("algo=attnrl", "pipeline=pipelined"),
    "grpo": ("algo=grpo",),
    "arpo": ("algo=arpo", "data=tool_task", "model=tiny_tools"),
    "rema": ("algo=rema", *REMA),
    "rema_json": (
        "algo=rema_json",
        *REMA,
        "pipeline=sequential",
        "policies=model_per_role",
        "data.train_max_samples=8",
        "marsrl.algo.iterations=1",
        "marsrl.algo.episodes=1",
        "marsrl.algo.plans_per_problem=2",
        "marsrl.algo.filter.samples=4",
    ),
}
MACHINE = "perf/"
"""Metrics with this in their names are of the machine."""
ROUNDING = 1e-4
"""Relative difference of a metric; gaps of log-probabilities that are all rounding up to this much, too."""
EVALUATIONS_OFF = ("marsrl.evaluation.before=false", "marsrl.evaluation.after=false")

Facts = dict[str, Any]
"""What a run did, by where: "rollouts/step_1: p0/dialogue/0#1 tokens"."""


def run(tree: Path, name: str, steps: int) -> Facts:
    """Starts a run in a checkout.

    Raises:
        SystemExit: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="same-runs-") as root:
        overrides = [*COMMON, *EVALUATIONS_OFF, *RUNS[name], f"trainer.total_training_steps={steps}"]
        command = [sys.executable, "-m", "recipe.marsrl.main_marsrl", *overrides, f"name={name}"]
        done = subprocess.run(
            [*command, f"marsrl.run.output_root={root}"],
            cwd=tree,
            env={**environment(tree), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            output = (done.stdout + done.stderr)[-4000:]
            raise SystemExit(f"{name} in {tree} ended with {done.returncode}:\n{output}")
        return dict(_facts(Path(root) / name))


def _facts(folder: Path) -> Iterator[tuple[str, Any]]:
    for path in sorted(folder.glob("rollouts/*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            for field, value in row.items():
                yield f"rollouts/{path.stem}: {row['trajectory']}/{row['sequence']} {field}", value
    for path in sorted(folder.glob("trained/*.json")):
        for trajectory, sequences in json.loads(path.read_text()).items():
            yield f"trained/{path.stem}: {trajectory}", sequences
    for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()):
        for name, value in line["metrics"].items():
            if MACHINE not in name:
                yield f"metrics/step_{line['step']}: {name}", value


def unequal(first: Facts, second: Facts) -> list[str]:
    """Where two runs differ, or only one has something."""
    return [key for key in sorted({*first, *second}) if not _same(key, first.get(key), second.get(key))]


def _same(key: str, one: Any, other: Any) -> bool:
    if key.startswith("metrics/") and isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING)
    return bool(one == other)


def main() -> None:
    parser = options(__doc__, "what was compared, and the differences")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--steps", type=int, default=5)
    chosen = parser.parse_args()
    old, new = chosen.old.resolve(), chosen.new.resolve()
    require_package(old)
    require_package(new)
    found: dict[str, Any] = {}
    for name in chosen.only:
        before, after = run(old, name, chosen.steps), run(new, name, chosen.steps)
        different = unequal(before, after)
        chance = set(unequal(before, run(old, name, chosen.steps))) if different else set()
        real = [key for key in different if key not in chance]
        found[name] = {"compared": len(before), "by_chance": len(chance), "different": real}
        print(f"{name}: {len(before):,} figures, {len(real)} different, {len(chance)} by chance", flush=True)
        for key in real[:20]:
            print(f"  {key}: {before.get(key)} | {after.get(key)}"[:300])
    write_json(chosen.json, {"old": commit(old), "new": commit(new), "machine": machine(), "runs": found})
    if any(one["different"] for one in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
