"""What solutions and plans are worth (ReMA, arXiv 2503.09501, appendix C.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.trajectory import RewardResult, Trajectory, is_correct
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rewards.normal_form import same_answer
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import RewardSpec

Same = Callable[[str, str], bool]
"""Whether two answers are one."""


class PlanRewardKind(Choice):
    """What a plan earns by the solutions that follow it."""

    CORRECTNESS = "correctness"
    """The share of them that are correct."""
    CONSISTENCY = "consistency"
    """The share of them that have their most frequent answer (Eq. 14)."""


class LeakRule(Choice):
    """Which plans are punished for giving the answer away."""

    EQUIVALENCE = "equivalence"
    """Those that claim something equal to the reference (`leak.PlanReward`)."""
    FORMAT = "format"
    """Those that have an answer in the form of answers, whatever it is (the paper's)."""
    EITHER = "either"
    """Both."""
    NONE = "none"
    """None of them."""


class PenaltyMode(Choice):
    """How a penalty is charged."""

    REPLACE = "replace"
    """It is the reward."""
    ADD = "add"
    """It is added to it."""


@dataclass(frozen=True, slots=True)
class SolutionValues:
    """What a solution earns."""

    correct: float = 1.0
    wrong: float = -0.5
    """With an answer in the form that is asked for."""
    no_answer: float = -1.0
    """Without one, or cut off before its end."""

    def of(self, *, correct: bool, has_answer: bool) -> float:
        """The value of one solution."""
        if correct:
            return self.correct
        return self.wrong if has_answer else self.no_answer


def solution_reward(
    one: Trajectory, values: SolutionValues, has_answer: Callable[[str], bool]
) -> RewardResult:
    """A solution's reward, from what its grader found.

    Args:
        one: scored: above 0.5 is correct.
        values: what it earns.
        has_answer: whether a text has an answer in the form that is asked for.

    What says nothing about the text (a failed request or grade) stays as it is.
    """
    found = one.scored
    if not one.comparable:
        return found
    correct = one.finished and is_correct(found.value)
    formed = one.finished and has_answer(one.final_text)
    value = values.of(correct=correct, has_answer=formed)
    return RewardResult(value, {**found.info, "correct": correct, "has_answer": formed}, found.error)


def mean_correctness(correct: Sequence[bool]) -> float:
    """The share of a plan's solutions that are correct."""
    return sum(correct) / len(correct)


def consistency(answers: Sequence[str | None], same: Same = same_answer) -> float:
    """The count of the most frequent answer over the number of solutions; 0 where more than half of these
    have no answer (Eq. 14).

    Args:
        answers: of a plan's solutions; None: no definite one.
        same: equal answers are one.
    """
    if 2 * sum(one is None for one in answers) > len(answers):
        return 0.0
    counts = [count for _, count in answer_counts(answers, same)]
    return max(counts, default=0) / len(answers)


def answer_counts(answers: Sequence[str | None], same: Same = same_answer) -> list[tuple[str, int]]:
    """Different answers with their frequencies, each by the wording that comes first in the alphabet of
    those that are equal to it; the order of `answers` makes no difference."""
    counts: dict[str, int] = {}
    for answer in sorted(one for one in answers if one is not None):
        known = answer if answer in counts else next((one for one in counts if same(one, answer)), answer)
        counts[known] = counts.get(known, 0) + 1
    return list(counts.items())


def punished(rule: LeakRule, info: Mapping[str, Any]) -> bool:
    """Whether the rule punishes a plan of which this is known (`leak`, `has_answer`)."""
    seen = {
        LeakRule.EQUIVALENCE: ("leak",),
        LeakRule.FORMAT: ("has_answer",),
        LeakRule.EITHER: ("leak", "has_answer"),
        LeakRule.NONE: (),
    }
    return any(info.get(name) for name in seen[rule])


def penalised(value: float, penalty: float, mode: PenaltyMode) -> float:
    """A plan's reward after a penalty."""
    return penalty if mode is PenaltyMode.REPLACE else value + penalty


class AnswerEquality:
    """Whether two answers are one, by the reward that grades solutions: the same equivalence for both.

    Args:
        spec: that reward. One that is no `AnswerReward` compares no two answers; normal forms do then.
    """

    def __init__(self, spec: RewardSpec) -> None:
        base: type[Any] = object
        found = load_class(spec.target, spec.kwargs, base)
        self._grader = found if isinstance(found, AnswerReward) else None
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, first: str, second: str) -> bool:
        """Compare."""
        if first == second or same_answer(first, second):
            return True
        if self._grader is None:
            return False
        pair = (first, second) if first <= second else (second, first)
        if pair not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[pair] = self._grader.grade(rf"\boxed{{{pair[0]}}}", [pair[1]]).value > 0.5
        return self._known[pair]


_REMEMBERED = 100_000
