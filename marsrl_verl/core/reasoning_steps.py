"""A response cut into reasoning steps, on token ids.

A step ends with a line break: a blank line where the response has one, else any line break. The cut is made
on the ids that were sampled, never on re-tokenised text; a separator may be spread over several tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from marsrl_verl.core.thinking import closing_token

BLANK_LINE = "\n\n"
LINE_BREAK = "\n"
SEPARATORS = (BLANK_LINE, LINE_BREAK)
"""Separators in the order in which they are tried (arXiv 2509.26628 splits at blank lines; its code falls
back to line breaks)."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive parts of a response that cover all of its tokens."""

    ends: tuple[int, ...]
    """One past the last token of every step, rising; the last one is the response's length. Empty for an
    empty response."""
    thinking: int
    """Number of steps that lie wholly before the one that closes the thinking part; all of them where nothing
    closes it."""

    def __post_init__(self) -> None:
        if any(later <= earlier for earlier, later in zip((0, *self.ends), self.ends, strict=False)):
            raise ValueError(f"steps end at {self.ends}, expected rising ends above 0")
        if not 0 <= self.thinking <= len(self.ends):
            raise ValueError(f"{self.thinking} of {len(self.ends)} steps are said to be thinking")

    def __len__(self) -> int:
        return len(self.ends)

    def start(self, step: int) -> int:
        """First token of a step, counted from 0."""
        return self.ends[step - 1] if step else 0

    def step_ids(self) -> list[int]:
        """The step of every token, from 0."""
        return [step for step in range(len(self)) for _ in range(self.ends[step] - self.start(step))]


@dataclass(slots=True)
class TokenTexts:
    """The text that each token id stands for, decoded once."""

    decode: Callable[[int], str]
    """The text of one token. A token that holds a part of a character may give any text without a line
    break."""
    _texts: dict[int, str] = field(default_factory=dict)

    def __getitem__(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self.decode(token)
        return text


def split_steps(
    response_ids: Sequence[int], texts: TokenTexts, *, separators: Sequence[str] = SEPARATORS
) -> Steps:
    """Cuts a response after each separator; the first kind that cuts it somewhere is used.

    A step ends after the token in which the run of line breaks that holds a separator ends, so that a break
    of three lines, or one in two tokens, ends one step only. A run without text before it (at the
    beginning of a response) ends no step. What follows the last separator is a step of its own. The thinking
    part is closed by the step in which the last `</think>` ends (arXiv 2509.26628, released code).

    Args:
        response_ids: T ids.
        texts: what each of them adds to the text.
        separators: strings of line breaks, tried in order. Without any, the response is one step.

    Returns:
        The steps; none for an empty response.
    """
    pieces = [texts[token] for token in response_ids]
    runs = [(end, breaks) for end, breaks in _runs_of_breaks(pieces) if end < len(pieces)]
    found = ([end for end, breaks in runs if breaks >= len(one)] for one in separators)
    return steps_ending(pieces, next(filter(None, found), []))


def steps_ending(pieces: Sequence[str], ends: Sequence[int]) -> Steps:
    """Steps of a response that end at `ends` and at its own end, with the number of thinking steps."""
    if not pieces:
        return Steps((), 0)
    all_ends, closing = (*ends, len(pieces)), closing_token(pieces)
    return Steps(all_ends, sum(closing is None or end <= closing for end in all_ends))


def _runs_of_breaks(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """(one past the token in which it ends, number of line breaks) of every run of line breaks after some
    text. Blanks between two breaks belong to the run."""
    longest: dict[int, int] = {}  # of two runs that end in one token the longer one counts
    breaks, end, text_before = 0, 0, False
    for at, piece in enumerate([*pieces, "the end"]):  # text behind the response ends its last run
        for character in piece:
            if character == LINE_BREAK:
                breaks, end = breaks + 1, at + 1
            elif not character.isspace():
                if breaks and text_before:
                    longest[end] = max(breaks, longest.get(end, 0))
                breaks, text_before = 0, True
    return list(longest.items())
