"""What runs of the system cost, by hand."""

from __future__ import annotations

from evaluation_tools import trajectory

from marsrl_verl.algos.marsrl.evaluation.loop_rules import RunEnd, SystemRun
from marsrl_verl.algos.marsrl.evaluation.role_metrics import EFFORT_METRICS, effort
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.evaluation.runs import Call, Runs


def call(role: str, number: int, tokens: int) -> Call:
    request = RolloutRequest(f"{role}/{number}", Problem("p", "q", "a"), f"{role}_{number}", role, (), 1)
    return Call(request, trajectory("s#0", ids=range(tokens)))


def run(problem: str, end: RunEnd, *calls: Call) -> SystemRun:
    return SystemRun(Problem(problem, "q", "a"), 0, calls=list(calls), end=end)


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
    found = effort(Runs("t", runs))
    assert list(found) == list(EFFORT_METRICS)
    assert {name: (item.mean, item.n) for name, item in found.items()} == {
        "accepted_share": (2 / 4, 4),
        "rejected_share": (1 / 4, 4),
        "iterations": (5 / 4, 4),
        "calls": (3.0, 4),
        "tokens": (42 / 4, 4),
    }
    assert all(item.low < item.mean < item.high for item in found.values())
