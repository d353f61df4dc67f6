"""What runs of the system cost, by hand."""

from __future__ import annotations

from marsrl_verl.core.types import (
    CORRECTOR,
    SOLVER,
    VERIFIER,
    FinishReason,
    Outcome,
    Problem,
    Sample,
    StageInput,
)
from marsrl_verl.evaluation.effort import EFFORT_METRICS, effort
from marsrl_verl.evaluation.system import Call, RunEnd, SystemEvaluation, SystemRun


def call(role: str, index: int, tokens: int) -> Call:
    stage_input = StageInput(f"{role}/{index}", Problem("p", "q", "a"), role, index, role, (), 1)
    ids = list(range(tokens))
    sample = Sample("s#0", "s", [1], ids, [0.0] * tokens, FinishReason.STOP, "x", "x", outcome=Outcome(1.0))
    return Call(stage_input, sample)


def run(problem: str, end: RunEnd, *calls: Call) -> SystemRun:
    return SystemRun(Problem(problem, "q", "a"), 0, list(calls), end=end)


def test_effort_by_hand():
    runs = [
        run("a", RunEnd.NO_SOLUTION, call(SOLVER, 0, 9)),
        # asked again in the first round, corrected, then accepted in the second
        run(
            "b",
            RunEnd.ACCEPTED,
            call(SOLVER, 0, 5),
            call(VERIFIER, 1, 2),
            call(VERIFIER, 1, 3),
            call(CORRECTOR, 2, 4),
            call(VERIFIER, 3, 1),
        ),
        run("c", RunEnd.ACCEPTED, call(SOLVER, 0, 5), call(VERIFIER, 1, 1)),
        run(
            "d",
            RunEnd.REJECTED,
            call(SOLVER, 0, 5),
            call(VERIFIER, 1, 2),
            call(CORRECTOR, 2, 4),
            call(VERIFIER, 3, 1),
        ),
    ]
    found = effort(SystemEvaluation("t", runs))
    assert list(found) == list(EFFORT_METRICS)
    assert {name: (item.mean, item.n) for name, item in found.items()} == {
        "accepted_share": (2 / 4, 4),
        "rejected_share": (1 / 4, 4),
        "iterations": (5 / 4, 4),
        "calls": (3.0, 4),
        "tokens": (42 / 4, 4),
    }
    assert all(item.low < item.mean < item.high for item in found.values())
