"""Parts of a recorded response: those of its policy, and those of tools, templates and other agents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.algos.registry import method_class
from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.core.thinking import CLOSE, OPEN
from marsrl_verl.replay.settings import tokenizer_of
from marsrl_verl.rollout.chat_tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class Part:
    """Response tokens from `begin` to `end` (exclusive)."""

    begin: int
    end: int
    own: bool
    """True where the policy wrote them, of its own choice or as a grammar forced it to."""
    text: str
    copied: bool = False
    """True where they are the beginning of another trajectory, which this one continues."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message: what the policy wrote in one piece, with the calls of tools at its end, or what others
    said."""

    part: Part
    token_ids: tuple[int, ...] = ()
    """(n,) as they are in the response; empty for others."""
    calls: tuple[Mapping[str, Any], ...] = ()
    """Their events (`tools.toolbox.event`)."""
    result: str | None = None
    """Results that it read, those of all calls together; None: nothing."""


@dataclass(frozen=True, slots=True)
class Responses:
    """Takes a run's responses apart.

    Args:
        chat: the run's tokenizer; None: it is not here, and a response is one part.
        grammar_roles: roles in whose responses a grammar forced what the policy did not choose.
    """

    chat: ChatTokenizer | None
    grammar_roles: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: DictConfig) -> Responses:
        """Parts of a run with this configuration."""
        algo = typed_settings(config).algo
        return cls(tokenizer_of(config), method_class(algo.name).traits(algo).grammar_roles)

    def parts(self, line: Mapping[str, Any]) -> list[Part]:
        """The parts of a line's response, in turn."""
        count, ids, copied = line["tokens"] or 0, line["token_ids"], _copied(line)
        masked = [] if line["role"] in self.grammar_roles else line["masked"]
        if self.chat is None or not (masked or 0 < copied < count):
            return [Part(0, count, True, line["response"], 0 < count <= copied)]
        return [
            Part(begin, end, own, self.chat.text(ids[begin:end]), end <= copied)
            for begin, end, own in _runs(masked, count, copied)
        ]

    def turns(self, line: Mapping[str, Any]) -> list[Turn]:
        """A line's response as messages.

        The calls of turn `k` (`event["turn"]`) stand at the end of the policy's part `k`, and what others
        wrote behind such a part are their results.
        """
        calls = [event for event in line["events"] if event.get("kind") == "tool"]
        found: list[Turn] = []
        own = 0
        for part in self.parts(line):
            if part.own:
                of_turn = tuple(event for event in calls if event["turn"] == own)
                found.append(Turn(part, tuple(line["token_ids"][part.begin : part.end]), of_turn))
                own += 1
            elif found and found[-1].calls and found[-1].result is None:
                found[-1] = replace(found[-1], result=part.text)
            else:
                found.append(Turn(part))
        return found


def _copied(line: Mapping[str, Any]) -> int:
    """Tokens at the beginning of a response that another one has too."""
    fork = line["fork"]
    forked = fork["token"] if fork and fork["sequence"] == line["sequence"] else 0
    return max(line["prefix_tokens"], forked)


def _runs(masked: list[list[int]], count: int, copied: int) -> Iterator[tuple[int, int, bool]]:
    others = {at for begin, end in masked for at in range(begin, end)}
    for (other, _), some in groupby(range(count), key=lambda at: (at in others, at < copied)):
        places = list(some)
        yield places[0], places[-1] + 1, not other


def reasoning_and_answer(text: str) -> tuple[str | None, str]:
    """The thinking part of a message, without its tags, and the rest; None: it has no closed one."""
    before, closed, rest = text.rpartition(CLOSE)
    return (before.replace(OPEN, "", 1).strip(), rest.strip()) if closed else (None, text)
