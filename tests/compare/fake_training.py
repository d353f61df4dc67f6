"""Stands in for the training program: writes a run folder's results without training anything.

How it behaves comes from overrides of its own, `fake.*=…`, and every call is noted in a file.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

COMMAND = (sys.executable, str(Path(__file__)))
SUITE = """
title: Two methods
note: A note.
generated_tokens: 1000
max_steps: 50
seconds_per_run: 90
curve: role/solver/solver_accuracy
methods:
  one: [fake.method=1]
  two: [fake.method=2]
"""


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words)
    folder = Path(given["marsrl.run.output_root"]) / given["name"]
    calls = Path(given["marsrl.run.output_root"]) / "calls.txt"
    with calls.open("a", encoding="utf-8") as file:
        file.write(given["name"] + "\n")
    print(f"training {given['name']} with {os.environ.get('OMP_NUM_THREADS')} threads")
    if given.get("fake.fails_at_seed") == given["marsrl.run.seed"]:
        print("RuntimeError: the engine is gone")
        return 3
    if "fake.sleeps" in given:
        (folder.parent / "process_id").write_text(str(os.getpid()))
        time.sleep(float(given["fake.sleeps"]))
    if "fake.waits_for" in given:  # as many runs under way
        deadline = time.monotonic() + 60
        while len(calls.read_text().split()) < int(given["fake.waits_for"]):
            if time.monotonic() > deadline:
                return 4
            time.sleep(0.02)
    seed = int(given["marsrl.run.seed"])
    tokens = int(given["marsrl.run.max_generated_tokens"]) + int(given.get("fake.more_tokens", 0))
    write_run(folder, tokens, solver=float(given.get("fake.solver", 0.5)) + 0.1 * (seed % 100))
    return 0


def write_run(
    folder: Path,
    tokens: int,
    solver: float,
    recall: float | None = None,
    start: float = 0.4,
    greedy: bool = True,
) -> None:
    """A finished run of two steps, half of the tokens in each."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = [
        {
            "step": step,
            "metrics": {
                "rollout/generated_tokens": tokens / 2,
                "role/solver/solver_accuracy": 0.3 * step,
                "batch/updates": step,
                "batch/rows": 90 * step,
            },
            "timings": {"step": 1.5},
        }
        for step in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))

    def measured(accuracy: float) -> dict[str, object]:
        return {
            "solver_accuracy": {"mean": accuracy, "low": 0.0, "high": 1.0, "n": 40},
            "system_accuracy": {"mean": accuracy + 0.05, "low": 0.0, "high": 1.0, "n": 40},
            "verifier_recall": {"mean": recall, "low": None, "high": None, "n": 0},
            "solver_accuracy_greedy": {"mean": accuracy, "low": 0.0, "high": 1.0, "n": 40},
        }

    def info(name: str) -> dict[str, object]:
        label = name.replace("_", " ").capitalize()
        return {"label": label, "meaning": name, "higher_is_better": True, "follows_errors": False}

    summary = {
        "before": measured(start),
        "after": measured(solver),
        "change": {},
        "headline": ["solver_accuracy", "system_accuracy"],
        "metrics": {name: info(name) for name in measured(0.0) if not name.endswith("_greedy")},
        "run": {
            "training_tokens": tokens,
            "seconds": 12.0,
            "versions": {"verl": "0.9.1"},
            "evaluations": [{"tag": "before", "problems": 40}, {"tag": "after", "problems": 40}],
        },
    }
    (folder / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
