"""Call 4: the demo of the README on the GPU, killed and resumed on the way."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from benchmarks.gpu_check.checks import Bench, Call, Check, CheckError, expect
from benchmarks.gpu_check.training import command, overrides, plan, train_until_killed
from benchmarks.tables import table
from benchmarks.training_runs import steps

STEPS, KILLED_AT = 14, 7
DEMO = ("model=tiny",)
EXPECTED = {
    "solver_accuracy": ((52.6, 57.5, 62.3), (94.8, 97.0, 98.3)),
    "verifier_accuracy": ((73.3, 76.9, 80.2), (92.9, 95.8, 97.5)),
    "corrector_fix_rate": ((34.5, 41.6, 49.1), (58.0, 85.7, 96.3)),
    "system_accuracy": ((71.6, 76.0, 79.9), (98.2, 99.5, 99.9)),
}
"""The README's: low, mean and high before and after, at temperature 1."""
JUDGED = ("solver_accuracy", "system_accuracy")
LEAST_AFTER = 92.0
"""Percent; runs of other seeds end between 94 and 99."""


def rows_of(summary: dict[str, Any]) -> list[list[str]]:
    """The run's figures beside those on the processor."""
    rows = []
    for name, expected in EXPECTED.items():
        row = [name]
        for when, (low, mean, high) in zip(("before", "after"), expected, strict=True):
            found = summary[when][name]["mean"]
            row += [f"{mean} [{low}, {high}]", "–" if found is None else f"{100 * found:.1f}"]
        rows.append(row)
    return rows


def judge(summary: dict[str, Any]) -> None:
    """Whether a run has learned what the processor's did.

    Before training it is the same model: its figures lie in the processor's intervals, widened by half for
    another draw. After it, what all runs reach.

    Raises:
        CheckError: it has not.
    """
    for name in JUDGED:
        (low, _, high), _ = EXPECTED[name]
        before, after = (100 * summary[when][name]["mean"] for when in ("before", "after"))
        slack = (high - low) / 4
        expect(
            low - slack <= before <= high + slack,
            f"{name} before training is {before:.1f} %, on the processor {low} to {high} %: the engine "
            "decodes otherwise",
        )
        expect(
            after >= LEAST_AFTER,
            f"{name} after training is {after:.1f} %, on the processor {EXPECTED[name][1][1]} %: training, "
            "or the weight sync, does something else",
        )


def demo(bench: Bench) -> None:
    """Fourteen steps with the processor's seed; killed at step 7 and resumed from its checkpoint."""
    own = overrides(*DEMO)
    text = plan(bench, "plan", *own)
    expect(bool(re.search(rf"\bsteps +{STEPS}\b", text)), f"the plan is not of {STEPS} steps")
    bench.trainer()
    start = time.perf_counter()
    folder = train_until_killed(bench, "demo", KILLED_AT, *own)
    bench.figures["to_step_7_s"] = time.perf_counter() - start
    start = time.perf_counter()
    bench.run([*command(bench.folder, "demo", *own), "marsrl.run.if_exists=resume"])
    bench.figures["resumed_s"] = time.perf_counter() - start
    summary = json.loads((folder / "summary.json").read_text())
    print(table(["metric", "CPU before", "before", "CPU after", "after"], rows_of(summary)))
    done = steps(folder)
    for name in JUDGED:
        before, after = (100 * summary[when][name]["mean"] for when in ("before", "after"))
        bench.figures[name] = f"{before:.1f} → {after:.1f}"
    bench.figures |= {
        "step_s": sum(one.timings["step"] for one in done) / len(done),
        "gap_mean": max(one.metrics.get("rollout/log_probs_diff_mean", 0.0) for one in done),
    }
    numbers = [one.number for one in done]
    if numbers != list(range(1, STEPS + 1)):
        raise CheckError(f"recorded steps are {numbers}, expected 1 to {STEPS}, each once")
    judge(summary)


CALL = Call(
    4,
    "the demo of the README, killed and resumed",
    7,
    "the whole loop: compare the table in the log with the README's, row by row",
    (Check("demo", 410, demo),),
)
