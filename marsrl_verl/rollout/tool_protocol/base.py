"""Interface of a tool protocol: where a turn ends, which calls it makes, how results are put in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from marsrl_verl.core.sanitize import REPLACEMENT, holds_surrogates
from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.settings.choices import Choice

_LEFT_OUT = r"\n\[… \d+ tokens left out …\]\n"
"""Pattern of the text that `truncate_text` puts in place of the middle."""
_DEEPEST = 20
"""Deepest nesting of arguments: logs and checkpoints go through them recursively."""


class ToolFormat(Choice):
    """Format in which calls and results are written."""

    TAGS = "tags"
    """`<name>…</name>` inside the answer, and `<result>…</result>` after it."""
    CHAT = "chat"
    """Turns of the assistant and of the tools, as the model's chat template writes them."""


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call as a model wrote it."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None
    """Reason why nothing can be called; the model reads it."""
    call_id: str | None = None
    """Id that the model gives it, if its format has ids."""


def read_arguments(text: str) -> dict[str, Any] | str:
    """The arguments that a model wrote as JSON, or what is wrong with them."""
    try:
        parsed = json.loads(text)
        depth, level = 0, [parsed]
        while level and depth <= _DEEPEST:  # without recursion: what a model writes is nested as it likes
            level = [part for one in level for part in _parts(one)]
            depth += 1
        if level:
            return f"they are nested more than {_DEEPEST} deep"
        if holds_surrogates(parsed):
            return "they hold halves of characters"
    except (ValueError, RecursionError) as error:
        return f"{type(error).__name__}: {error}"
    return parsed if isinstance(parsed, dict) else "they are something else"


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


class ToolProtocol(Protocol):
    """Protocol by which a model calls tools."""

    stop: tuple[str, ...]
    """Strings that end a turn with a call."""
    template_tools: tuple[Mapping[str, Any], ...]
    """Schemas that the chat template shows."""
    tags: frozenset[str]
    """Names of the tags that a result must not hold."""

    async def calls(self, turn: TokenIds, stop: str | None, tokenizer: ChatTokenizer) -> list[RequestedCall]:
        """The calls of a turn that the model ended; none where it is the answer.

        Args:
            turn: what it has sampled since the last result.
            stop: the string that ended it.
            tokenizer: of these ids.
        """

    def append(self, chat: Conversation, results: Sequence[tuple[RequestedCall, str]]) -> None:
        """Lets the model read the results of a turn's calls, in their order."""


def inert_result(text: str, tags: Iterable[str], tokenizer: ChatTokenizer) -> str:
    """A tool's text without control tokens, and with `[tag]` in place of each `<tag>` of the protocol, also
    of `<tag=value>` and `<tag name="value">`: it can neither end the turn it is put into, nor pass for the
    model's own words."""
    names = "|".join(sorted(map(re.escape, tags), key=lambda one: (-len(one), one)))
    plain = tokenizer.without_control_tokens(text)
    if not names:
        return plain
    rest = rf"(?:(?=[\s/=])(?:(?!{_LEFT_OUT})[^<>])*)?"
    return re.sub(rf"<(\s{{0,8}}/?\s{{0,8}}(?:{names}){rest})>", r"[\1]", plain, flags=re.I)


def truncate_text(text: str, limit: int, tokenizer: ChatTokenizer) -> tuple[str, int, bool]:
    """A text without control tokens, of at most `limit` tokens: of a longer one head and tail, and how many
    tokens are left out. Also its tokens, and whether something was left out."""
    ids = tokenizer.raw_ids(text)
    if len(ids) <= limit:
        return text, len(ids), False
    budget = limit
    while budget > 0:
        # Cut tokens may spell other tokens together with what they now stand beside, so it is counted anew.
        ellipsis = f"\n[… {len(ids) - budget} tokens left out …]\n"
        # A cut may go through a character.
        head = tokenizer.text(ids[: budget - budget // 2]).rstrip(REPLACEMENT)
        tail = tokenizer.text(ids[len(ids) - budget // 2 :]).lstrip(REPLACEMENT) if budget // 2 else ""
        short = f"{head}{ellipsis}{tail}"
        count = len(tokenizer.raw_ids(short))
        if count <= limit:
            return short, count, True
        budget -= max(1, count - limit)
    return "", 0, True
