"""What the roles and the system are measured by, from samples and the inputs that they answered.

For the Verifier the positive class is an incorrect solution: a true positive is the verdict Wrong on an
incorrect solution. An INVALID verdict is a wrong judgement (it lowers accuracy, and recall when the
solution was incorrect) but no alarm: it counts neither for precision nor as a false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from marsrl_verl.core.types import CORRECTOR, SOLVER, VERIFIER, Verdict, is_correct
from marsrl_verl.evaluation.estimators import FEW, Estimate, Observations, estimate
from marsrl_verl.evaluation.judgement import answer_reward, verdict_of
from marsrl_verl.evaluation.system import Call, SystemEvaluation


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """How a metric is named for readers and which direction is better."""

    label: str
    meaning: str
    higher_is_better: bool = True
    follows_errors: bool = False
    """Whether it depends on how many and which errors there are to find and repair. Two models' figures are
    then of different inputs, and their difference says little about the role."""

    def judged(self, *cases: int | None) -> bool:
        """Whether a difference between figures of this metric may be called better or worse.

        Args:
            cases: number of observations behind each figure; one that is unknown (None) may be small.
        """
        return not self.follows_errors and all(count is not None and count >= FEW for count in cases)


ROLE_METRICS: dict[str, MetricInfo] = {
    "solver_accuracy": MetricInfo("Solver accuracy", "share of Solver answers that are correct"),
    "verifier_accuracy": MetricInfo(
        "Verifier accuracy", "share of verdicts that agree with the truth about the judged solution"
    ),
    "verifier_recall": MetricInfo("Verifier recall", "share of incorrect solutions with verdict Wrong"),
    "verifier_precision": MetricInfo(
        "Verifier precision", "share of Wrong verdicts whose solution is incorrect", follows_errors=True
    ),
    "verifier_false_alarm_rate": MetricInfo(
        "Verifier false alarms", "share of correct solutions with verdict Wrong", higher_is_better=False
    ),
    "corrector_fix_rate": MetricInfo(
        "Corrector fix rate",
        "share of incorrect solutions that are correct after the Corrector",
        follows_errors=True,
    ),
    "corrector_break_rate": MetricInfo(
        "Corrector break rate",
        "share of correct solutions that are incorrect after the Corrector",
        higher_is_better=False,
        follows_errors=True,
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

VERIFIER_F1 = "verifier_f1"
"""No share of observations, so it is none of the metrics above; `f1_estimates` derives it from them."""

GREEDY_SUFFIX = "_greedy"


def role_observations(calls: Iterable[Call]) -> dict[str, Observations]:
    """The yes/no observations behind each of `ROLE_METRICS`, by metric name.

    Every call counts: a Verifier that was asked in two rounds gives two observations of its problem.
    """
    pairs: dict[str, list[tuple[bool, str]]] = {name: [] for name in ROLE_METRICS}
    for call in calls:
        for name, outcome in _observed(call):
            pairs[name].append((outcome, call.input.problem.problem_id))
    return {name: Observations.of(items) for name, items in pairs.items()}


def system_observations(evaluation: SystemEvaluation) -> dict[str, Observations]:
    """The observations behind each of `EVALUATION_METRICS`, by metric name."""
    observations = role_observations(evaluation.calls)
    observations["system_accuracy"] = Observations.of(
        (run.solved, run.problem.problem_id) for run in evaluation.runs
    )
    return observations


def estimates(observations: dict[str, Observations], confidence: float = 0.95) -> dict[str, Estimate]:
    """Each metric's mean and interval."""
    return {name: estimate(items, confidence) for name, items in observations.items()}


def f1_estimates(observations: dict[str, Observations], confidence: float = 0.95) -> dict[str, Estimate]:
    """`verifier_f1` and `verifier_f1_greedy` by name, where recall and precision were observed."""
    found = {}
    for suffix in ("", GREEDY_SUFFIX):
        recall, precision = (observations.get(f"verifier_{one}{suffix}") for one in ("recall", "precision"))
        if recall is not None and precision is not None:
            found[VERIFIER_F1 + suffix] = _f1_estimate(recall, precision, confidence)
    return found


def verifier_f1(calls: Iterable[Call], confidence: float = 0.95) -> Estimate:
    """F1 of finding incorrect solutions, the harmonic mean of the Verifier's precision and recall.

    F1 = 2J / (1 + J) with J = TP / (TP + FP + FN), which is a proportion; its interval is mapped through
    this increasing function. n = TP + FP + FN.
    """
    observed = role_observations(calls)
    return _f1_estimate(observed["verifier_recall"], observed["verifier_precision"], confidence)


def _f1_estimate(recall: Observations, precision: Observations, confidence: float) -> Estimate:
    """From the observations of recall (TP and FN) and, of those of precision, the false positives."""
    false_alarms = [(False, problem) for hit, problem in precision.pairs() if not hit]
    judged = Observations.of([*zip(recall.outcomes, recall.problems, strict=True), *false_alarms])
    found = estimate(judged, confidence)
    return Estimate(_f1(found.mean), _f1(found.low), _f1(found.high), found.n)


def _f1(jaccard: float | None) -> float | None:
    return None if jaccard is None else 2 * jaccard / (1 + jaccard)


def _truth(call: Call) -> bool:
    """Whether the solution that was judged or repaired is correct."""
    reward = call.input.solution_reward
    if reward is None:
        raise ValueError(
            f"input {call.input.group_id} of role {call.input.role} has no solution_reward; it must carry "
            "the reward of the solution it shows"
        )
    return is_correct(reward)


def _observed(call: Call) -> list[tuple[str, bool]]:
    """(metric, outcome) pairs that one call contributes."""
    if call.input.role == SOLVER:
        return [("solver_accuracy", is_correct(answer_reward(call.sample)))]
    if call.input.role == VERIFIER:
        return _observed_verdict(_truth(call), verdict_of(call.sample))
    if call.input.role == CORRECTOR:
        after = is_correct(answer_reward(call.sample))
        return [("corrector_break_rate", not after) if _truth(call) else ("corrector_fix_rate", after)]
    return []


def _observed_verdict(solution_correct: bool, verdict: Verdict) -> list[tuple[str, bool]]:
    alarm = verdict is Verdict.WRONG
    right = verdict is (Verdict.CORRECT if solution_correct else Verdict.WRONG)
    observed = [("verifier_accuracy", right)]
    observed.append(("verifier_false_alarm_rate" if solution_correct else "verifier_recall", alarm))
    if alarm:
        observed.append(("verifier_precision", not solution_correct))
    return observed
