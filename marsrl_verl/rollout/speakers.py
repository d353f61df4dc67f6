"""Agents with a list of messages: one that is trained, whose tokens are kept, and one of which only text is
known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from marsrl_verl.core.request import Message
from marsrl_verl.core.sequence import Plain, TokenIds
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.context import RolloutContext
from marsrl_verl.rollout.conversation import Conversation


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A message."""

    finish: FinishReason
    """STOP: the agent ended it. LENGTH: it was cut. PAUSED: it goes on later. Else there is none."""
    text: str = ""
    """Part that the other agent may see: what follows the thinking part."""
    token_ids: TokenIds | None = None
    """(n,) as sampled; None where only text is known."""
    detail: str | None = None
    """Why there is none."""
    failed_by: str | None = None
    """See `Trajectory.failed_by`."""


class TrainedSpeaker:
    """One agent with its list of messages as a conversation: token in, token out."""

    def __init__(self, chat: Conversation) -> None:
        self._chat = chat

    async def speak(
        self,
        turn: int,
        max_tokens: int | None,
        stop: Sequence[str],
        structured: Mapping[str, Any] | None = None,
    ) -> Spoken:
        """Writes a message, or goes on with one that was paused. A stop string in the thinking part ends
        nothing.

        Args:
            turn: noted of its tokens.
            max_tokens: of the message, in all rounds; None: as many as the role's limits leave.
            stop: strings that end it.
            structured: see `Decoding`.
        """
        chat = self._chat
        while True:
            left = None if max_tokens is None else max_tokens - chat.turn_ids().size
            found = await chat.sample(max_tokens=left, stop=stop, structured=structured, turn=turn)
            text = chat.turn_final_text()
            if found.stop is None or found.stop in text:
                return Spoken(found.finish, text, chat.turn_ids(), chat.detail, chat.failed_by)

    def hear(self, messages: Sequence[Message]) -> None:
        """Takes messages of others before its next one."""
        self._chat.append(messages)

    def fits(self, tokens: int) -> bool:
        """True where the list has room for a message of so many tokens, or one has begun already."""
        return self._chat.turn_ids().size > 0 or self._chat.tokens_left >= tokens

    def sequence(self) -> TokenSequence:
        """Its trained sequence."""
        return self._chat.sequence()

    def state(self) -> Plain:
        """All that a later round needs beside the sequence to go on."""
        return self._chat.state()


class FrozenSpeaker:
    """Like `TrainedSpeaker`, with a frozen policy, which is sent the whole list each time. Its limits
    are its own."""

    def __init__(self, context: RolloutContext, k: int, role: str, messages: Sequence[Message]) -> None:
        self._context, self._k, self._role = context, k, role
        self._messages = [dict(message) for message in messages]

    async def speak(
        self,
        turn: int,
        max_tokens: int | None,
        stop: Sequence[str],
        structured: Mapping[str, Any] | None = None,
    ) -> Spoken:
        """Cuts the message behind a stop string, and what follows it says nothing: the message ended there,
        also where the endpoint wrote on until its limit. ValueError: `structured` needs tokens."""
        if structured is not None:
            raise ValueError(
                f"{self._role} has a frozen policy, which say(structured=…) can't hold to a form"
            )
        one = await self._context.chat(self._k, self._role, self._messages, stop)
        text = one.final_text
        ends = [text.find(delimiter) + len(delimiter) for delimiter in stop if delimiter in text]
        text = text[: min(ends, default=len(text))]
        self._messages.append({"role": "assistant", "content": text})
        finish = FinishReason.STOP if ends else one.finish
        return Spoken(finish, text, None, one.detail, one.failed_by)

    def hear(self, messages: Sequence[Message]) -> None:
        self._messages += [dict(message) for message in messages]

    def fits(self, tokens: int) -> bool:
        return True

    def sequence(self) -> TokenSequence | None:
        return None

    def state(self) -> Plain:
        return {"messages": [dict(message) for message in self._messages]}


Speaker: TypeAlias = TrainedSpeaker | FrozenSpeaker
"""An agent with its list of messages."""
