"""Measures of the roles and of the system, from trajectories and their requests, and the cost of the system's
runs.

For the Verifier the positive class is an incorrect solution: a true positive is the verdict Wrong on an
incorrect solution. An INVALID verdict is a wrong judgement (it lowers accuracy, and recall when the
solution was incorrect) but no alarm: it counts neither for precision nor as a false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from marsrl_verl.algos.marsrl.evaluation.loop_rules import AGAIN, verdict_of
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import (
    GREEDY_SUFFIX,
    Estimate,
    MetricInfo,
    Observations,
    estimate,
)
from marsrl_verl.evaluation.runs import Call, Run, Runs, answer_reward, calls_of, final_answer, tokens_of
from marsrl_verl.evaluation.single_role import accuracy_info, accuracy_metric

_of_errors = partial(MetricInfo, follows_errors=True)
ROLE_METRICS: dict[str, MetricInfo] = {
    accuracy_metric(SOLVER): accuracy_info(SOLVER),
    "verifier_accuracy": _of_errors(
        "Verifier accuracy", "share of verdicts that agree with the truth about the judged solution"
    ),
    "verifier_recall": _of_errors("Verifier recall", "share of incorrect solutions with verdict Wrong"),
    "verifier_precision": _of_errors(
        "Verifier precision", "share of Wrong verdicts whose solution is incorrect"
    ),
    "verifier_false_alarm_rate": MetricInfo(
        "Verifier false alarms", "share of correct solutions with verdict Wrong", higher_is_better=False
    ),
    "corrector_fix_rate": _of_errors(
        "Corrector fix rate", "share of incorrect solutions that are correct after the Corrector"
    ),
    "corrector_break_rate": _of_errors(
        "Corrector break rate",
        "share of correct solutions that are incorrect after the Corrector",
        higher_is_better=False,
    ),
}
"""Proportions that single role calls give, in the order in which they are shown."""

EVALUATION_METRICS: dict[str, MetricInfo] = {
    **ROLE_METRICS,
    "system_accuracy": MetricInfo(
        "System accuracy", "share of runs whose answer is correct after the verify–correct rounds"
    ),
}
"""The metrics of an evaluation; with the suffix `_greedy` at temperature 0."""

EFFORT_METRICS: dict[str, str] = {
    "accepted_frac": "share of runs in which a solution was accepted",
    "rejected_frac": "share of runs that were given up after Wrong verdicts in a row",
    "iterations": "verify–correct rounds that a run entered",
    "calls": "model calls of a run",
    "tokens": "tokens that all roles generated in a run",
}
"""Course and cost of a run: name → meaning; with the suffix `_greedy` at temperature 0."""

VERIFIER_F1 = "verifier_f1"
"""Not a share of observations, so not among the metrics above; `f1_estimates` derives it from them."""


def effort(evaluation: Runs, confidence: float = 0.95) -> dict[str, Estimate]:
    """Returns the mean of each of `EFFORT_METRICS` over the runs, with an interval clustered by problem."""
    runs, found = evaluation.runs, {}
    for name, end in (("accepted_frac", "accepted"), ("rejected_frac", "rejected")):
        ended = Observations.of((run.end == end, run.problem.problem_id) for run in runs)
        found[name] = estimate(ended, confidence)
    return found | evaluation.means(confidence, iterations=_iterations, calls=calls_of, tokens=tokens_of)


def _iterations(run: Run) -> int:
    # A Verifier that is prompted again after an unreadable verdict is still in the same round.
    asked = [call.request for call in run.calls if call.request.role == VERIFIER]
    return len({request.stage.removesuffix(AGAIN) for request in asked})


def log_fields(request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
    """Returns a trajectory's answer and verdict, and the reward of the solution that it is about, for the
    log."""
    info = trajectory.scored.info
    return {
        "answer": info.get("answer"),
        "verdict": info.get("verdict"),
        "solution_reward": request.inputs.get("solution_reward"),
    }


def role_observations(calls: Iterable[Call]) -> dict[str, Observations]:
    """Returns the yes/no observations behind each of `ROLE_METRICS`, by metric name.

    Every call counts: a Verifier that was prompted in two rounds gives two observations of its problem.
    """
    pairs: dict[str, list[tuple[bool, str]]] = {name: [] for name in ROLE_METRICS}
    for call in calls:
        for name, outcome in _observed(call):
            pairs[name].append((outcome, call.request.problem.problem_id))
    return {name: Observations.of(items) for name, items in pairs.items()}


def system_observations(runs: Runs) -> dict[str, Observations]:
    """Returns the observations behind each of `EVALUATION_METRICS`, by metric name."""
    answers = ((run.solved, run.problem.problem_id) for run in runs.runs)
    return {**role_observations(runs.calls), "system_accuracy": Observations.of(answers)}


def f1_estimates(observations: Mapping[str, Observations], confidence: float = 0.95) -> dict[str, Estimate]:
    """Returns `verifier_f1` and `verifier_f1_greedy` by name, if recall and precision were observed."""
    found = {}
    for suffix in ("", GREEDY_SUFFIX):
        recall, precision = (observations.get(f"verifier_{one}{suffix}") for one in ("recall", "precision"))
        if recall is not None and precision is not None:
            found[VERIFIER_F1 + suffix] = _f1_estimate(recall, precision, confidence)
    return found


def role_figures(groups: Iterable[Group]) -> dict[str, float]:
    """Returns the accuracies and rates of scored groups, except those without an observation, and the shares
    of answers and verdicts that can't be read."""
    calls = [Call(group.request, one) for group in groups for one in group.trajectories]
    observed = role_observations(calls)
    metrics = {name: items.mean for name, items in observed.items()}
    answers = [final_answer(call.trajectory) for call in calls if call.request.role in (SOLVER, CORRECTOR)]
    if answers:
        metrics["missing_answer_frac"] = answers.count(None) / len(answers)
    verdicts = [verdict_of(call.trajectory) for call in calls if call.request.role == VERIFIER]
    if verdicts:
        metrics["invalid_verdict_frac"] = verdicts.count(Verdict.INVALID) / len(verdicts)
        metrics[VERIFIER_F1] = f1_estimates(observed)[VERIFIER_F1].mean
    return {name: value for name, value in metrics.items() if value is not None}


def _f1_estimate(recall: Observations, precision: Observations, confidence: float) -> Estimate:
    """Returns the F1 of finding incorrect solutions, the harmonic mean of the Verifier's precision and
    recall.

    F1 = 2J / (1 + J) with J = TP / (TP + FP + FN), which is a proportion; its interval is mapped through
    this increasing function. n = TP + FP + FN: the observations of recall, and the false ones of precision.
    """
    false_alarms = [(False, problem) for hit, problem in precision.pairs() if not hit]
    judged = Observations.of([*zip(recall.outcomes, recall.problems, strict=True), *false_alarms])
    found = estimate(judged, confidence)
    return Estimate(_f1(found.mean), _f1(found.low), _f1(found.high), found.n)


def _f1(jaccard: float | None) -> float | None:
    return None if jaccard is None else 2 * jaccard / (1 + jaccard)


def _truth(call: Call) -> bool:
    """True if the solution that was judged or repaired is correct."""
    reward = call.request.inputs.get("solution_reward")
    if reward is None:
        raise ValueError(
            f"request {call.request.group_id} of role {call.request.role} has no solution_reward; its inputs "
            "must carry the reward of the solution it shows"
        )
    return is_correct(reward)


def _observed(call: Call) -> list[tuple[str, bool]]:
    """Returns the (metric, outcome) pairs that one call contributes."""
    if call.request.role == SOLVER:
        return [("solver_accuracy", is_correct(answer_reward(call.trajectory)))]
    if call.request.role == VERIFIER:
        return _observed_verdict(_truth(call), verdict_of(call.trajectory))
    if call.request.role == CORRECTOR:
        after = is_correct(answer_reward(call.trajectory))
        return [("corrector_break_rate", not after) if _truth(call) else ("corrector_fix_rate", after)]
    return []


def _observed_verdict(solution_correct: bool, verdict: Verdict) -> list[tuple[str, bool]]:
    alarm = verdict is Verdict.WRONG
    observed = [
        ("verifier_accuracy", verdict is (Verdict.CORRECT if solution_correct else Verdict.WRONG)),
        ("verifier_false_alarm_rate" if solution_correct else "verifier_recall", alarm),
    ]
    if alarm:
        observed.append(("verifier_precision", not solution_correct))
    return observed
