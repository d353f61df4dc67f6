"""Answers compared as text first, by mathematical equivalence where that fails (AttnRL, arXiv 2509.26628)."""

from __future__ import annotations

from marsrl_verl.core.types import Outcome
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.bare_answer import same_bare_answer
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.math_verify import MATH_GRADER, MathVerifyReward


class HybridReward(AnswerReward):
    """1 where the exact comparison, the one without units and percent signs, or math-verify accepts the
    answer. Most right answers never reach the slowest one.

    The released verifier grades a response without a closing tag as a whole, and one that was cut off; here
    both have reward 0, as with every reward for an answer.

    Args:
        timeout_s, memory_mb, grader: of `MathVerifyReward`.
    """

    def __init__(self, timeout_s: float = 5.0, memory_mb: int = 4096, grader: str = MATH_GRADER) -> None:
        self.exact = ExactAnswerReward()
        self.equivalent = MathVerifyReward(timeout_s, memory_mb, grader)

    def grade(self, final_text: str, references: list[str]) -> Outcome:
        """The comparisons of text decide what is right, math-verify what is wrong."""
        found = self.exact.grade(final_text, references)
        if found.reward:
            return found
        answer = found.answer
        if answer is not None and any(same_bare_answer(answer, one) for one in references):
            return Outcome(1.0, answer=answer)
        return self.equivalent.grade(final_text, references)

    def close(self) -> None:
        """End math-verify's process."""
        self.equivalent.close()
