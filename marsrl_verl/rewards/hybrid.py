"""Answers compared as text first, by mathematical equivalence where that fails (arXiv 2509.26628)."""

from __future__ import annotations

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.bare_answer import same_bare_answer
from marsrl_verl.rewards.extraction import boxed_answer
from marsrl_verl.rewards.guards import contradiction
from marsrl_verl.rewards.math_verify import MathVerifyReward
from marsrl_verl.rewards.normal_form import same_answer


class HybridReward(MathVerifyReward):
    """1 where the exact comparison, the one without units, or math-verify accepts the answer: the verdicts of
    `MathVerifyReward` (with its arguments), more of which are reached by text, before any process.

    The released verifier grades a response without a closing tag as a whole, and one that was cut off; here
    both have reward 0, as with every reward for an answer.
    """

    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """The comparisons of text decide what is right, math-verify what is wrong."""
        boxed = boxed_answer(final_text)
        if boxed is not None:
            pairs = ((reading, one) for reading in boxed.readings for one in references)
            if any(_same_but_for_units(reading, one) for reading, one in pairs):
                return RewardResult(1.0, {"answer": boxed.text})
        return super().grade(final_text, references)


def _same_but_for_units(answer: str, reference: str) -> bool:
    return same_answer(answer, reference) or (
        same_bare_answer(answer, reference) and not contradiction(answer, reference)
    )
