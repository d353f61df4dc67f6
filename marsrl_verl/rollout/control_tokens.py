"""Tokens that a chat template or an engine gives a meaning, taken out of text that is to be quoted."""

from __future__ import annotations

import re
from typing import Any

from marsrl_verl.core.thinking import CLOSE, OPEN

_MARKER = re.compile(r"<\S+>|\[\S+\]")
_PIPED = re.compile(r"<[|｜]\S*[|｜]>")


def control_tokens(tokenizer: Any) -> frozenset[str]:
    """The added tokens whose spelling in a prompt would be read as control: end of turn, roles, tool calls.

    All special tokens are, and of the others those that look like markers (`<｜User｜>`) or that the chat
    template writes (`<tool_call>`). Tags of the thinking part are not, nor added words and HTML tags.

    Upstream behaviour: `all_special_tokens` of transformers 5 has the named ones alone (`eos_token`, …), and
    a tokenizer may have role markers that are not flagged as special (DeepSeek-R1-Distill).
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    added = {str(token): bool(token.special) for token in tokenizer.added_tokens_decoder.values()}
    named = dict.fromkeys(map(str, tokenizer.all_special_tokens), True)
    return frozenset(
        token
        for token, special in {**added, **named}.items()
        if token.strip() and token not in (OPEN, CLOSE)
        if special or _PIPED.fullmatch(token) or (_MARKER.fullmatch(token) and token in template)
    )


class ControlTokenRemover:
    """Takes spelt-out control tokens out of texts, in time linear in their length.

    Args:
        tokens: of `control_tokens`.
    """

    def __init__(self, tokens: frozenset[str]) -> None:
        # The longest first, so that no rest of a token stays where another one is its beginning.
        ordered = sorted(tokens, key=lambda token: (-len(token), token))
        self._tokens = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        # No token may come into being where another one was taken out, so a gap stays: a character that
        # is in no token.
        self._gap = next(gap for gap in (" ", "\n", "\ufffd") if not any(gap in token for token in tokens))

    def remove(self, text: str) -> str:
        """The text with a gap in place of each control token."""
        return text if self._tokens is None else self._tokens.sub(self._gap, text)
