"""Tokenizers as far as the rollout code needs one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AddedToken:
    """An entry of a tokenizer's table of added tokens."""

    content: str
    special: bool = True

    def __str__(self) -> str:
        return self.content


class AddedTokens:
    """A tokenizer's tables of tokens with a meaning.

    Args:
        special: tokens that are flagged as special.
        others: added tokens that are not.
    """

    chat_template: str | None = None
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self, special: tuple[str, ...] = (), others: tuple[str, ...] = ()) -> None:
        table = [AddedToken(token) for token in special] + [AddedToken(token, False) for token in others]
        self.added_tokens_decoder = dict(enumerate(table))
