"""Rewards of solutions and plans (ReMA, arXiv 2503.09501, appendix C.2)."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marsrl_verl.core.trajectory import RewardResult, Trajectory, is_correct
from marsrl_verl.rewards.base import AnswerReward, RoleReward
from marsrl_verl.rewards.grade_pool import GradeFailure
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.normal_form import same_answer
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import RewardSpec, Settings

_LOG = logging.getLogger(__name__)

Same = Callable[[str, str], bool]
"""Comparison of two answers, true if they are equal."""
PARALLEL = 4
"""Plans of a problem whose answers are compared at a time: as many as graders have processes."""


class PlanRewardKind(Choice):
    """Reward of a plan by the solutions that follow it (`Config.plan_reward`; Eq. 14)."""

    CORRECTNESS = "correctness"
    CONSISTENCY = "consistency"


class LeakRule(Choice):
    """Rule for the plans that are punished for giving the answer away (`Config.leak_rule`)."""

    EQUIVALENCE = "equivalence"
    FORMAT = "format"
    EITHER = "either"
    VALUE = "value"
    NONE = "none"


NEED_LOOK = frozenset({LeakRule.EQUIVALENCE, LeakRule.EITHER, LeakRule.VALUE})
"""Rules that use the findings of `leak.PlanReward`."""


class PenaltyMode(Choice):
    """Way in which a penalty is charged (`Config.penalty_mode`)."""

    REPLACE = "replace"
    ADD = "add"


class SolutionValues(Settings):
    """Rewards of solutions (appendix C.2)."""

    correct: float = 1.0
    """Reward of a correct solution."""
    wrong: float = -0.5
    """Reward of a wrong solution with an answer in the form that is asked for."""
    no_answer: float = -1.0
    """Reward of a solution without such an answer, or that did not come to its end."""


def solution_reward(
    one: Trajectory, values: SolutionValues, has_answer: Callable[[str], bool]
) -> RewardResult:
    """Returns a solution's reward by its grade.

    Args:
        one: scored: above 0.5 is correct.
        values: rewards of solutions.
        has_answer: whether a text has an answer in the form that is asked for.

    A result that says nothing about the text (a failed request or grade) stays as it is.
    """
    found = one.scored
    if not one.comparable:
        return found
    correct = one.finished and is_correct(found.value)
    formed = one.finished and has_answer(one.final_text)
    otherwise = values.wrong if formed else values.no_answer
    value = values.correct if correct else otherwise
    return RewardResult(value, {**found.info, "correct": correct, "has_answer": formed}, found.error)


def consistency(answers: Sequence[str | None], same: Same = same_answer) -> float:
    """Returns the count of the most frequent answer over the number of solutions; 0 if more than half of
    these have no answer (Eq. 14).

    Args:
        answers: of a plan's solutions; None: no definite one.
        same: comparison of two answers, true if they are equal.
    """
    if 2 * sum(one is None for one in answers) > len(answers):
        return 0.0
    counts = [count for _, count in answer_counts(answers, same)]
    return max(counts, default=0) / len(answers)


def answer_counts(answers: Sequence[str | None], same: Same = same_answer) -> list[tuple[str, int]]:
    """Returns the different answers with their frequencies, each in that of its equal wordings which comes
    first in the alphabet; the order of `answers` makes no difference."""
    counts: dict[str, int] = {}
    for answer in sorted(one for one in answers if one is not None):
        # By text first, which costs nothing and needs no process.
        known = (
            answer if answer in counts else next((one for one in counts if same_answer(one, answer)), None)
        )
        known = known or next((one for one in counts if same(one, answer)), answer)
        counts[known] = counts.get(known, 0) + 1
    return list(counts.items())


def consistencies(
    plans: Sequence[Sequence[tuple[str | None, bool]]], same: Same, *, one_reference: bool
) -> list[float]:
    """Returns the consistency of each of a problem's plans; at most `PARALLEL` of them are compared at a
    time.

    Answers are not compared where their grades decide: a correct and a wrong one are different, and if there
    is one reference, two correct ones are equal.

    Args:
        plans: of each of their solutions, the answer and whether it is correct.
        same: comparison of two answers, true if they are equal; called from several threads.
        one_reference: whether the problem has a single right answer.
    """

    def value(solutions: Sequence[tuple[str | None, bool]]) -> float:
        graded: dict[str | None, bool] = {}
        for answer, correct in solutions:
            graded[answer] = graded.get(answer, False) or correct

        def same_here(first: str, second: str) -> bool:
            if graded[first] != graded[second]:
                return False
            return (one_reference and graded[first]) or same(first, second)

        return consistency([answer for answer, _ in solutions], same_here)

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(value, plans))


def punished(rule: LeakRule, info: Mapping[str, Any]) -> bool:
    """True if the rule punishes a plan with these findings (`leak`, `value_leak`, `has_answer`)."""
    seen = {
        LeakRule.EQUIVALENCE: ("leak",),
        LeakRule.FORMAT: ("has_answer",),
        LeakRule.EITHER: ("leak", "has_answer"),
        LeakRule.VALUE: ("leak", "value_leak"),
        LeakRule.NONE: (),
    }
    return any(info.get(name) for name in seen[rule])


def penalised(value: float, penalty: float, mode: PenaltyMode) -> float:
    """Returns a plan's reward after a penalty."""
    return penalty if mode is PenaltyMode.REPLACE else value + penalty


class AnswerEquality:
    """Comparison of two answers by the reward that grades solutions: the same equivalence for both.

    May be called from several threads. What the reward opens is closed with the object, or with the process.

    Args:
        spec: that reward. If it is no `AnswerReward`, which could compare two answers, normal forms are
            compared.
    """

    def __init__(self, spec: RewardSpec) -> None:
        found = load_class(spec.target, spec.kwargs, RoleReward)
        self._grader = found if isinstance(found, AnswerReward) else None
        self._known: dict[tuple[str, str], bool] = {}
        self._end = weakref.finalize(self, found.close)

    def __call__(self, first: str, second: str) -> bool:
        """Returns true if two answers are equal; where the grader fails they count as different, which is
        logged."""
        if first == second or same_answer(first, second):
            return True
        if self._grader is None:
            return False
        pair = (first, second) if first <= second else (second, first)
        known = self._known.get(pair)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            try:
                known = self._grader.grade(rf"\boxed{{{pair[0]}}}", [pair[1]]).value > 0.5
            except GradeFailure as error:
                _LOG.warning("answers %r and %r count as two: %s", *pair, error)
                return False
            self._known[pair] = known
        return known

    def close(self) -> None:
        """Ends the reward's processes; a later comparison would start new ones."""
        self._end()


_REMEMBERED = 100_000


def definite_answer(one: RewardResult) -> str | None:
    """Returns the answer of a solution; an empty box is none.

    Raises:
        ValueError: it is correct, and its reward class does not say what its answer is.
    """
    answer = one.info.get("answer")
    if answer is None and one.info["correct"]:
        raise ValueError(
            "marsrl.algo.plan_reward = consistency: a correct solution came without an answer, expected it "
            "as info['answer'] of the result of marsrl.reward.reasoning; give it, or set "
            "plan_reward=correctness"
        )
    return (str(answer) if answer else None) if one.info["has_answer"] else None


def tells_answers(spec: RewardSpec) -> bool:
    """True if a reward's results have the answer (`RoleReward.tells_answer`). A class that can't be loaded is
    reported by the checks of classes."""
    try:
        found = load_class(spec.target, spec.kwargs, RoleReward)
    except ClassLoadError:
        return True
    try:
        return found.tells_answer
    finally:
        found.close()
