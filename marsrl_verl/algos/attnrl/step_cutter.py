"""Steps of a model's responses: the cut of `core.reasoning_steps` with a tokenizer's texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.reasoning_steps import SEPARATORS, Steps, TokenTexts, split_steps, steps_ending
from marsrl_verl.settings.choices import Choice

FINAL_WORDS = ("answer", "conclusion")
"""Words from which on TreeRL does not branch, if a token holds one (arXiv 2506.11902, released code)."""


def split_after_tokens(
    response_ids: Sequence[int], texts: TokenTexts, *, separators: Sequence[str] = SEPARATORS
) -> Steps:
    """Cuts a response as AttnRL's released code does: a step ends after every single token whose text holds
    the separator, and a response without any such token has a step for each of its tokens.

    `split_steps`, whose arguments and result it has, differs at blank lines before any text, at two tokens of
    blank lines in a row, at a blank line and then a line break, at a blank line that two tokens spell, and in
    a response without line breaks.
    """
    pieces = [texts[token] for token in response_ids]
    for separator in separators:
        ends = [end for end, piece in enumerate(pieces, 1) if separator in piece]
        if ends:
            return steps_ending(pieces, [end for end in ends if end < len(pieces)])
    return steps_ending(pieces, list(range(1, len(pieces))))


class StepDelimiter(Choice):
    """Places at which a step ends."""

    BREAKS = "breaks"
    """After a run of line breaks, however many tokens spell it (`split_steps`)."""
    TOKENS = "tokens"
    """After every token that holds a separator (`split_after_tokens`, AttnRL's released code)."""


@dataclass(frozen=True, slots=True)
class StepCutter:
    """Cuts responses into steps with the model's tokenizer."""

    texts: TokenTexts
    ends: StepDelimiter = StepDelimiter.BREAKS

    def cut(self, response_ids: Sequence[int]) -> Steps:
        """Cuts a response into steps (`StepDelimiter`)."""
        split = split_steps if self.ends is StepDelimiter.BREAKS else split_after_tokens
        return split(response_ids, self.texts)

    def first_final_word(self, response_ids: Sequence[int]) -> int | None:
        """Returns the first token that contains one of `FINAL_WORDS`; None without one."""
        for at, token in enumerate(response_ids):
            if any(word in self.texts[token].lower() for word in FINAL_WORDS):
                return at
        return None


def step_cutter(tokenizer: Any, ends: StepDelimiter = StepDelimiter.BREAKS) -> StepCutter:
    """Returns a cutter of responses of a Hugging Face tokenizer's ids."""

    def decode(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return StepCutter(TokenTexts(decode), ends)
