"""Separate a response's reasoning from what other roles may see."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

OPEN = "<think>"
CLOSE = "</think>"


def final_text(text: str, thinking_opened: bool = False) -> str:
    """The text after the last `</think>`, stripped.

    Args:
        text: the whole decoded response.
        thinking_opened: the prompt ended inside a thinking block (the chat template wrote `<think>`),
            so that a response without `</think>` is reasoning to its end.

    Returns:
        The final text; empty when the reasoning never ended.
    """
    _, closed, tail = text.rpartition(CLOSE)
    if OPEN in tail or (thinking_opened and not closed):
        return ""
    return tail.strip()


def closing_token(pieces: Sequence[str]) -> int | None:
    """The index of the token in which the last `</think>` ends, however many tokens spell it, from what each
    token of the response adds to the text; None where nothing closes the thinking part."""
    at = "".join(pieces).rfind(CLOSE)
    if at < 0:
        return None
    end = at + len(CLOSE)
    return bisect_left(list(accumulate(map(len, pieces))), end)
