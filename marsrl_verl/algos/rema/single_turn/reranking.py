"""Figures of k1 plans with k2 solutions each: the choices of an oracle, a vote and a reward model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.at_k import best_of_k, pass_at_k, reported_k
from marsrl_verl.evaluation.estimators import MetricInfo, Observations
from marsrl_verl.evaluation.runs import answer_reward
from marsrl_verl.rewards.reward_model import SCORE

MAJORITY, FLAT, HIERARCHICAL = "majority_accuracy", "flat_rerank_accuracy", "hierarchical_rerank_accuracy"
METRICS = {
    MAJORITY: MetricInfo("Majority", "share of problems whose most frequent answer is correct"),
    FLAT: MetricInfo(
        "Flat reranking",
        "accuracy of the solution that the reward model scores highest among all of a problem",
    ),
    HIERARCHICAL: MetricInfo(
        "Hierarchical reranking",
        "accuracy of the solution that it scores highest among those of the plan with the highest mean score",
    ),
}
_PASS = "pass_at_"
_UNSCORED = -math.inf
"""Score of solutions that did not come to an end, which are chosen only if there is no other."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution's grade and score; `MISSING` stands for one that a plan should have and has not."""

    right: bool
    score: float | None
    """The reward model's; None: there is none."""


MISSING = Solution(False, None)
Plans = Sequence[Sequence[Solution]]
"""A problem's solutions by plan, as many of each."""


def solution_of(one: Trajectory) -> Solution:
    """Returns the solution of a scored trajectory."""
    score = one.scored.info.get(SCORE)
    return Solution(is_correct(answer_reward(one)), None if score is None else float(score))


def pass_at(plans: Plans, drawn: int, of_each: int) -> float:
    """Returns the chance that some solution is right among `of_each` of each of `drawn` plans, all drawn
    without replacement: 1 less the elementary symmetric polynomial of the plans' chances to fail over
    C(plans, drawn). Unbiased for both numbers; with one of each it is pass@k of `drawn` answers."""
    sums = [1.0] + [0.0] * drawn
    for one in plans:
        failing = 1 - pass_at_k(len(one), sum(each.right for each in one), of_each)
        for size in range(drawn, 0, -1):
            sums[size] += failing * sums[size - 1]
    return 1 - sums[drawn] / math.comb(len(plans), drawn)


def flat(plans: Plans) -> float:
    """Returns the chance that the solution with the highest score of all is right; equal ones are equally
    likely."""
    every = [(_score(each), each.right) for one in plans for each in one]
    return best_of_k(every, len(every))


def hierarchical(plans: Plans) -> float:
    """Returns the same for the plan whose solutions have the highest mean score. (By its best solution a plan
    would be chosen as by `flat`.) A solution without a score, such as one that was cut off, counts as the
    worst of all: leaving it out would favour its plan."""
    worst = min((each.score for one in plans for each in one if each.score is not None), default=_UNSCORED)
    means = [fmean(worst if each.score is None else each.score for each in one) for one in plans]
    return fmean(flat([one]) for one, mean in zip(plans, means, strict=True) if mean == max(means))


def reranked(problems: Mapping[str, Plans], each: int) -> dict[str, Observations]:
    """Returns by metric a number for each problem: with several solutions of a plan
    `pass_at_<plans>x<solutions>` of numbers up to what every problem has, and if a reward model has scored
    solutions, `flat_rerank_accuracy` and `hierarchical_rerank_accuracy`. Empty if a problem has one solution.

    Args:
        problems: by id.
        each: solutions of a plan.
    """
    most = min(map(len, problems.values()), default=0)
    if most * each < 2:
        return {}
    found = {
        f"{_PASS}{drawn}x{of_each}": Observations.of(
            (pass_at(plans, drawn, of_each), name) for name, plans in problems.items()
        )
        for drawn in (1, *reported_k(most))
        for of_each in (1, *reported_k(each))
        if each > 1 and drawn * of_each > 1
    }
    scored = any(each.score is not None for plans in problems.values() for one in plans for each in one)
    if scored:
        found[FLAT] = Observations.of((flat(plans), name) for name, plans in problems.items())
        if each > 1:
            found[HIERARCHICAL] = Observations.of(
                (hierarchical(plans), name) for name, plans in problems.items()
            )
    return found


def pass_metrics(names: Iterable[str]) -> dict[str, MetricInfo]:
    """Returns the labels of each `pass_at_<plans>x<solutions>`."""
    what = "chance that one is right of so many plans x solutions of each"
    shown = (name for name in names if name.startswith(_PASS))
    return {name: MetricInfo(f"Pass@{name.removeprefix(_PASS)}", what) for name in shown}


def _score(one: Solution) -> float:
    return _UNSCORED if one.score is None else one.score
