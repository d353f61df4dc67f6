"""Answers compared as text first, by mathematical equivalence where that fails (arXiv 2509.26628)."""

from __future__ import annotations

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.bare_answer import same_bare_answer
from marsrl_verl.rewards.extraction import boxed_answer
from marsrl_verl.rewards.guards import contradiction
from marsrl_verl.rewards.math_verify import MATH_GRADER, MathVerifyReward
from marsrl_verl.rewards.normal_form import same_answer


class HybridReward(AnswerReward):
    """1 where the exact comparison, the one without units, or math-verify accepts the answer: the verdicts of
    `MathVerifyReward`, of which more are told by text, before any process.

    The released verifier grades a response without a closing tag as a whole, and one that was cut off; here
    both have reward 0, as with every reward for an answer.

    Args:
        timeout_s, memory_mb, grader, processes, require_box: of `MathVerifyReward`.
    """

    graded_ability = "math"

    def __init__(
        self,
        timeout_s: float = 1.0,
        memory_mb: int = 4096,
        grader: str = MATH_GRADER,
        processes: int = 4,
        require_box: bool = True,
    ) -> None:
        self.equivalent = MathVerifyReward(timeout_s, memory_mb, grader, processes, require_box)

    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """The comparisons of text decide what is right, math-verify what is wrong."""
        boxed = boxed_answer(final_text)
        if boxed is not None:
            pairs = ((reading, one) for reading in boxed.readings for one in references)
            if any(_same_but_for_units(reading, one) for reading, one in pairs):
                return RewardResult(1.0, {"answer": boxed.text})
        return self.equivalent.grade(final_text, references)

    def longest_s(self, calls: int) -> float:
        """As math-verify's."""
        return self.equivalent.longest_s(calls)

    def close(self) -> None:
        """End math-verify's processes."""
        self.equivalent.close()


def _same_but_for_units(answer: str, reference: str) -> bool:
    return same_answer(answer, reference) or (
        same_bare_answer(answer, reference) and contradiction(answer, reference) is None
    )
