"""Short real runs of the tiny model in a source tree, and whether another tree samples and trains the same.

    python tests/golden/real_runs.py record FOLDER [--tree TREE] [--only NAME …]
    python tests/golden/real_runs.py compare FOLDER [--tree TREE] [--only NAME …]

By hand, not by pytest: each run takes a minute or two. `record` starts every run twice and notes which fields
are not the same in both; `compare` starts each once and leaves these out. Figures of another machine's
processor may differ, so the files stay outside of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trace_files import ENDINGS, Difference, differences, digest, dumps, rounded, same, spans

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900
METRIC_TOLERANCE = 1e-3
"""Relative difference of a metric that another order of the same sums explains."""
COMMON = (
    "cluster=cpu",
    "trainer.logger=[]",
    "data.train_batch_size=4",
    "marsrl.run.seeded_tokens=all",
    "marsrl.evaluation.before=false",
    "marsrl.evaluation.after=false",
    "trainer.save_freq=-1",
    "trainer.total_training_steps=5",
    # The whole rate from the first update on, so that few steps change enough.
    "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
)
RUNS: dict[str, tuple[str, ...]] = {
    "marsrl_sequential": ("marsrl.algo.group_size=4", "pipeline=sequential"),
    "marsrl_segments": (
        "marsrl.algo.group_size=4",
        "pipeline=pipelined",
        "marsrl.pipeline.max_segments=4",
        "marsrl.pipeline.min_group=2",
    ),
    "attnrl": ("algo=attnrl", "pipeline=pipelined"),
    "grpo": ("algo=grpo",),
    "arpo": ("algo=arpo", "data=tool_world", "model=tiny_tools"),
    "rema": ("algo=rema", "data=rema_world", "model=tiny_rema"),
    "rema_json": (
        "algo=rema_json",
        "data=rema_world",
        "model=tiny_rema",
        "pipeline=sequential",
        "policies=model_per_role",
        "data.train_max_samples=8",
        "marsrl.algo.iterations=1",
        "marsrl.algo.episodes=1",
        "marsrl.algo.plans_per_problem=2",
        "marsrl.algo.filter.samples=4",
    ),
}
METRICS = {
    "gradient norm": "actor/grad_norm",
    "policy loss": "actor/pg_loss",
    "policy kl": "actor/ppo_kl",
    "entropy": "actor/entropy",
    "rows": "batch/rows",
    "padding rows": "batch/padding_rows",
    "updates": "batch/updates",
    "rounds": "rollout/rounds",
    "generated tokens": "rollout/generated_tokens",
    "problems of the next step": "attnrl/next_problems",
    "influence": "attnrl/influence_mean",
    **{f"reward {role}": f"role/{role}/reward_mean" for role in ("solver", "verifier", "corrector")},
}
"""Neutral names of the metrics that are compared. One that the step does not have is left out."""


def run(tree: Path, name: str) -> dict[str, Any]:
    """Start a run in a source tree; what it sampled and trained as a trace."""
    with tempfile.TemporaryDirectory(prefix="golden-real-") as root:
        overrides = [*COMMON, *RUNS[name], f"name={name}", f"marsrl.run.output_root={root}"]
        done = subprocess.run(
            [sys.executable, "-m", "recipe.marsrl.main_marsrl", *overrides],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{name} in {tree} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}")
        return read_run(Path(root) / name, name)


def read_run(folder: Path, name: str) -> dict[str, Any]:
    """A run's folder as a trace."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [
        {
            "step": line["step"],
            "sampled": [_sampled(row) for row in _lines(folder / f"rollouts/step_{line['step']}.jsonl")],
            "advantages": _advantages(folder / f"trained/step_{line['step']}.json"),
            "metrics": {key: line["metrics"][at] for key, at in METRICS.items() if at in line["metrics"]},
        }
        for line in lines
    ]
    return rounded({"scenario": name, "steps": steps, "end": {}})


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _sampled(row: dict[str, Any]) -> list[Any]:
    """A row by the columns `COLUMNS["sampled"]`."""
    letters = {ending: letter for letter, ending in ENDINGS.items()}
    return [
        row["trajectory"],
        row["parent"] or "",
        letters[row["finish_reason"]],
        row["reward"] if row["graded"] else "?",
        digest(row["prompt"].encode()),
        row["tokens"],
        digest(json.dumps(row["token_ids"]).encode()),
        spans(row["versions"]),
        "" if row.get("influence") is None else spans(list(enumerate(row["influence"]))),
    ]


def _advantages(path: Path) -> list[Any]:
    """Rows by the columns `COLUMNS["advantages"]`; none of a step without an update."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return [[name, " | ".join(map(spans, sequences))] for name, sequences in sorted(found.items())]


# --- comparison -------------------------------------------------------------------------------


def field_of(difference: Difference) -> str:
    """The part and the field, without the step and the row: "sampled: response"."""
    return f"{difference.row.split()[0]}: {difference.field}"


def unlike(expected: dict[str, Any], found: dict[str, Any]) -> list[Difference]:
    """The differences that rounding does not explain."""
    return [
        one
        for one in differences(expected, found)
        if not (one.row == "metrics" and same(one.expected, one.found, METRIC_TOLERANCE))
    ]


def record(folder: Path, tree: Path, names: Iterable[str]) -> None:
    """Run everything twice and write it down."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        first, second = run(tree, name), run(tree, name)
        exact = sorted({field_of(one) for one in differences(first, second)})
        changing = sorted({field_of(one) for one in unlike(first, second)})
        (folder / f"{name}.json").write_text(dumps({**first, "not reproducible": changing}) + "\n")
        print(f"{name}: {len(first['steps'])} steps; not equal {exact}, not reproducible {changing}")


def compare(folder: Path, tree: Path, names: Iterable[str]) -> bool:
    """Whether a tree does what was recorded; prints the differences."""
    equal = True
    for name in names:
        expected = json.loads((folder / f"{name}.json").read_text())
        changing = set(expected.pop("not reproducible"))
        found = [one for one in unlike(expected, run(tree, name)) if field_of(one) not in changing]
        equal = equal and not found
        print(f"{name}: {'as recorded' if not found else f'{len(found)} differences'}")
        for one in found[:20]:
            print(f"  {one}")
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path, help="where the recorded runs are")
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="the source tree that runs")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    arguments = parser.parse_args()
    if arguments.action == "record":
        record(arguments.folder, arguments.tree.resolve(), arguments.only)
    elif not compare(arguments.folder, arguments.tree.resolve(), arguments.only):
        sys.exit(1)


if __name__ == "__main__":
    main()
