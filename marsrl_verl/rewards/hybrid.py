"""Answers compared as text first, by mathematical equivalence where that fails (AttnRL, arXiv 2509.26628)."""

from __future__ import annotations

from marsrl_verl.core.types import Outcome
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.math_verify import MATH_GRADER, MathVerifyReward


class HybridReward(AnswerReward):
    """1 where the exact comparison or math-verify accepts the answer. Most right answers never reach the
    slower one.

    Args:
        timeout_s, memory_mb, grader: of `MathVerifyReward`.
    """

    def __init__(self, timeout_s: float = 5.0, memory_mb: int = 4096, grader: str = MATH_GRADER) -> None:
        self.exact = ExactAnswerReward()
        self.equivalent = MathVerifyReward(timeout_s, memory_mb, grader)

    def grade(self, final_text: str, references: list[str]) -> Outcome:
        """The exact comparison decides what is right, math-verify what is wrong."""
        found = self.exact.grade(final_text, references)
        return found if found.reward else self.equivalent.grade(final_text, references)

    def close(self) -> None:
        """End math-verify's process."""
        self.equivalent.close()
