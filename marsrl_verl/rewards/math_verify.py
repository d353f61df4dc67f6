"""Answers compared by mathematical equivalence (math-verify)."""

from __future__ import annotations

import importlib.util
from fractions import Fraction

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import AnswerReward
from marsrl_verl.rewards.extraction import BoxedAnswer, boxed_answer
from marsrl_verl.rewards.grade_pool import GradePool, TooHard
from marsrl_verl.rewards.normal_form import apart, normal_form, same_answer

MATH_GRADER = "marsrl_verl.rewards.math_grading:grade"


class MathVerifyReward(AnswerReward):
    """The final answer is mathematically equal to a reference.

    Text decides first where it can: an answer in the reference's normal form is right, a number that clearly
    differs from a number is wrong. The others are graded in separate processes, which are started with the
    first of them. An answer on which a process runs out of time or memory is wrong.

    Args:
        timeout_s: most seconds of processor time per response.
        memory_mb: most memory of a process.
        grader: `package.module:function` with the signature and result of `math_grading.grade`.
        processes: most responses that are graded at the same time.
        require_box: a response without a box is wrong. False has math-verify find the answer in its text,
            which a policy can learn to exploit. Another `grader` reads responses as it likes.
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
        if grader == MATH_GRADER and importlib.util.find_spec("math_verify") is None:
            raise ImportError("the package math-verify is missing: pip install 'math-verify>=0.8'")
        self._text_first = grader == MATH_GRADER
        self._require_box = require_box and self._text_first
        self.pool = GradePool(grader, processes=processes, timeout_s=timeout_s, memory_mb=memory_mb)

    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """Compares texts where that suffices, else has a process grade."""
        boxed = boxed_answer(final_text)
        if boxed is None and self._require_box:
            return RewardResult(0.0)
        if boxed is not None and self._text_first:
            found = _verdict_from_text(boxed, references)
            if found is not None:
                return RewardResult(float(found), {"answer": boxed.text})
        try:
            result = self.pool.call(final_text, references)
        except TooHard as error:
            return RewardResult(0.0, {} if boxed is None else {"answer": boxed.text}, error=str(error))
        return RewardResult(float(result["correct"]), {"answer": result["answer"]}, error=result["error"])

    def longest_s(self, calls: int) -> float:
        """Returns the limit of its processes."""
        return self.pool.longest_s(calls)

    def close(self) -> None:
        """Ends the processes."""
        self.pool.close()


def _verdict_from_text(boxed: BoxedAnswer, references: list[str]) -> bool | None:
    """Checks whether the answer is right; None if its text does not tell."""
    if any(same_answer(reading, one) for reading in boxed.readings for one in references):
        return True
    numbers = [normal_form(one) for one in (boxed.text, *references)]
    if boxed.percent_behind or any(isinstance(one, str) for one in numbers):
        return None
    answer, *others = (Fraction(one) for one in numbers)
    return False if all(apart(answer, other) for other in others) else None
