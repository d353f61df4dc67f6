"""How a run of the reasoning system went and what it cost: acceptance, rounds, calls, tokens.

A run is one pass of the system over one problem; with several samples per problem a problem has several.
"""

from __future__ import annotations

from marsrl_verl.algos.marsrl.prompts import VERIFIER
from marsrl_verl.evaluation.estimators import Estimate, Observations, estimate, mean_estimate
from marsrl_verl.evaluation.runs import Run, Runs, calls_of, tokens_of

EFFORT_METRICS: dict[str, str] = {
    "accepted_share": "share of runs in which a solution was accepted",
    "rejected_share": "share of runs that were given up after Wrong verdicts in a row",
    "iterations": "verify–correct rounds that a run entered",
    "calls": "model calls of a run",
    "tokens": "tokens that all roles generated in a run",
}
"""Name → meaning; with the suffix `_greedy` at temperature 0."""


AGAIN = "_again"
"""Ends the stage of a question that is put a second time, after an unreadable verdict."""


def effort(evaluation: Runs, confidence: float = 0.95) -> dict[str, Estimate]:
    """The mean of each of `EFFORT_METRICS` over the runs, with an interval clustered by problem."""
    runs = evaluation.runs
    found = {}
    for name, end in (("accepted_share", "accepted"), ("rejected_share", "rejected")):
        ended = Observations.of((run.end == end, run.problem.problem_id) for run in runs)
        found[name] = estimate(ended, confidence)
    for name, measure in (("iterations", _iterations), ("calls", calls_of), ("tokens", tokens_of)):
        pairs = [(float(measure(run)), run.problem.problem_id) for run in runs]
        found[name] = mean_estimate(pairs, confidence)
    return found


def _iterations(run: Run) -> int:
    # A Verifier that is asked again after an unreadable verdict is still in the same round.
    return len(
        {call.request.stage.removesuffix(AGAIN) for call in run.calls if call.request.role == VERIFIER}
    )
