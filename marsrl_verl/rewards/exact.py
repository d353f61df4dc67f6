"""Answers compared as normalised text or numbers: fast, in-process, never computes."""

from __future__ import annotations

from marsrl_verl.core.types import Outcome
from marsrl_verl.rewards.answer import AnswerReward
from marsrl_verl.rewards.extraction import last_boxed, last_number, same_answer


class ExactAnswerReward(AnswerReward):
    r"""The content of the last `\boxed{…}` has the normal form of a reference.

    Args:
        allow_last_number: without a box, the last number in the text is the answer.
    """

    def __init__(self, allow_last_number: bool = False) -> None:
        self.allow_last_number = allow_last_number

    def grade(self, final_text: str, references: list[str]) -> Outcome:
        """Compare normal forms."""
        answer = last_boxed(final_text)
        if answer is None and self.allow_last_number:
            answer = last_number(final_text)
        if answer is None:
            return Outcome(0.0)
        return Outcome(float(any(same_answer(answer, item) for item in references)), answer=answer)
