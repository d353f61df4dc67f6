"""Answers compared as normalised text or numbers: fast, in-process, never computes."""

from __future__ import annotations

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import AnswerReward
from marsrl_verl.rewards.extraction import boxed_answer, last_number
from marsrl_verl.rewards.normal_form import same_answer


class ExactAnswerReward(AnswerReward):
    r"""The content of the last `\boxed{…}`, or list of boxes, has the normal form of a reference.

    Args:
        allow_last_number: without a box, the last number in the text is the answer.
    """

    def __init__(self, allow_last_number: bool = False) -> None:
        self.allow_last_number = allow_last_number

    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """Compares normal forms."""
        boxed = boxed_answer(final_text)
        if boxed is not None:
            readings = boxed.readings
        elif self.allow_last_number and (number := last_number(final_text)) is not None:
            readings = (number,)
        else:
            return RewardResult(0.0)
        right = any(same_answer(one, reference) for one in readings for reference in references)
        return RewardResult(float(right), {"answer": readings[0]})
