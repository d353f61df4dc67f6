"""Steps of a model's responses: the cut of `core.steps` with a tokenizer's texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.steps import Steps, TokenTexts, split_steps

FINAL_WORDS = ("answer", "conclusion")
"""TreeRL does not branch from a token with one of these words on (arXiv 2506.11902, released code)."""


@dataclass(frozen=True, slots=True)
class StepCutter:
    """Cuts responses into steps with the model's tokenizer."""

    texts: TokenTexts
    separators: tuple[str, ...] = ("\n\n", "\n")

    def cut(self, response_ids: Sequence[int]) -> Steps:
        """See `split_steps`."""
        return split_steps(response_ids, self.texts, separators=self.separators)

    def first_final_word(self, response_ids: Sequence[int]) -> int | None:
        """The first token that contains one of `FINAL_WORDS`."""
        for at, token in enumerate(response_ids):
            if any(word in self.texts[token].lower() for word in FINAL_WORDS):
                return at
        return None


def step_cutter(tokenizer: Any) -> StepCutter:
    """Cuts responses of a Hugging Face tokenizer's ids."""

    def decode(token: int) -> str:
        return str(tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return StepCutter(TokenTexts(decode))
