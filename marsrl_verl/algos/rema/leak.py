r"""Detection of plans that give the answer away: by what they claim, not by how they look.

A plan that says "the answer is 12", that has 12 in a box, or that ends a computation in `= 12` leaks it
where 12, 0.5 * 24 or \frac{24}{2} is right; one that says "add 12 and 7", or that shows another number in a
box, does not. The released code of ReMA (arXiv 2503.09501) looks for the substring `boxed`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from marsrl_verl.algos.rema.claims import claims, holds, states, tells_in_words, values
from marsrl_verl.algos.rema.json_actions import parse_action
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import AnswerReward, RoleReward, ScoreRequest
from marsrl_verl.rewards.extraction import references
from marsrl_verl.rewards.loading import load_class
from marsrl_verl.rewards.normal_form import same_answer

MAX_GRADED = 4
"""The last claims, and values, of a plan that the grader compares if none is equal by text."""
LOOK_FOR_VALUES = "look_for_values"
"""Input of a request: plans are also searched for the answer among all values that they hold."""


class PlanReward(RoleReward):
    """Checks whether a plan gives the answer away; its reward comes from the solutions that follow it.

    The result's `info` has `leak`, and `leaked` with the claim; with the request's input `LOOK_FOR_VALUES`
    also `value_leak`: whether any value in the plan that the question does not hold equals a reference. Its
    value is 0: `Method.deferred_rewards` replaces it.

    Args:
        grader: the reward for answers (`package.module:Class`, an `AnswerReward`) that says which claims
            equal a reference.
        kwargs: its keyword arguments.
        look: if false, plans are not searched, as those for judging two answers.
    """

    pays_unfinished = True

    def __init__(
        self,
        grader: str = "marsrl_verl.rewards.hybrid:HybridReward",
        kwargs: dict[str, Any] | None = None,
        look: bool = True,
    ) -> None:
        self.grader = load_class(grader, kwargs, AnswerReward) if look else None

    def score(self, request: ScoreRequest) -> RewardResult:
        """Compares the plan's claims with the references."""
        if self.grader is None:
            return RewardResult(0.0)
        text = request.final_text
        if request.inputs.get("form") == "json":
            action = parse_action(text)
            text = text if action is None else action.output
        accepted, question = references(request.problem.ground_truth), request.problem.question
        leaked = self._equal_to(accepted, claims(text), partial(states, question))
        info: dict[str, Any] = {"leak": leaked is not None}
        if request.inputs.get(LOOK_FOR_VALUES):
            leaked = leaked or self._equal_to(accepted, values(text), partial(holds, question))
            leaked = leaked or next((one for one in accepted if tells_in_words(text, question, one)), None)
            info["value_leak"] = leaked is not None
        return RewardResult(0.0, info if leaked is None else {**info, "leaked": leaked})

    def longest_s(self, calls: int) -> float | None:
        """Returns the grader's limit times the most claims and values that it compares."""
        one = None if self.grader is None else self.grader.longest_s(calls)
        return None if one is None else 2 * MAX_GRADED * one

    def close(self) -> None:
        if self.grader is not None:
            self.grader.close()

    def _equal_to(self, accepted: list[str], found: list[str], is_known: Callable[[str], bool]) -> str | None:
        """Returns the last one that equals a reference, by text or, of the last ones, by the grader; not one
        that the question makes known."""
        latest = found[::-1]
        equal = (one for one in latest if any(same_answer(one, each) for each in accepted))
        told = next((one for one in equal if not is_known(one)), None)
        if told is not None or not accepted:
            return told
        secret = islice((one for one in latest if not is_known(one)), MAX_GRADED)
        return next((one for one in secret if self._equal(one, accepted)), None)

    def _equal(self, claim: str, accepted: list[str]) -> bool:
        assert self.grader is not None
        return self.grader.grade(rf"\boxed{{{claim}}}", accepted).value > 0.5
