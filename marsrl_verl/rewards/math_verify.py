"""Answers compared by mathematical equivalence (math-verify)."""

from __future__ import annotations

import importlib.util

from marsrl_verl.core.types import Outcome
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.grade_process import GradeProcess, GradeTimeout

MATH_GRADER = "marsrl_verl.rewards.math_grading:grade"


class MathVerifyReward(AnswerReward):
    """The final answer is mathematically equal to a reference; graded in a separate process, which is
    started with the first response and replaced when a response takes too long.

    Args:
        timeout_s: most seconds per response; longer counts as reward 0 with an error.
        memory_mb: most memory of the process.
        grader: `package.module:function` with the signature and result of `math_grading.grade`.
    """

    def __init__(self, timeout_s: float = 10.0, memory_mb: int = 4096, grader: str = MATH_GRADER) -> None:
        if grader == MATH_GRADER and importlib.util.find_spec("math_verify") is None:
            raise ImportError("the package math-verify is missing: pip install 'math-verify>=0.8'")
        self.process = GradeProcess(grader, timeout_s=timeout_s, memory_mb=memory_mb)

    def grade(self, final_text: str, references: list[str]) -> Outcome:
        """Ask the process; a timeout is an outcome."""
        try:
            result = self.process.call(final_text, references)
        except GradeTimeout as error:
            return Outcome(0.0, error=f"timeout: {error}", graded=False)
        return Outcome(float(result["correct"]), answer=result["answer"], error=result["error"])

    def close(self) -> None:
        """End the process."""
        self.process.close()
