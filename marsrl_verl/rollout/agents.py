"""Agents of an episode: what they say, and how a workflow requests it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from marsrl_verl.core.request import Message
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rollout.speakers import Speaker

MAX_IN_VAIN = 100
"""Messages in a row that were cut or failed, without a text: an agent is not prompted again."""


class Said(str):
    """A message, as others may see it: what follows its thinking part."""

    finish: FinishReason
    """STOP: the agent ended it. LENGTH: it was cut. Else there is none, and the text is empty."""
    detail: str | None
    """Why there is no message."""
    failed_by: str | None
    """See `Trajectory.failed_by`."""
    event: Mapping[str, Plain]
    """Event of the message in the log (`Workflow.event`)."""

    @property
    def cut(self) -> bool:
        """True if it reached a limit."""
        return self.finish is FinishReason.LENGTH

    @property
    def failed(self) -> bool:
        """True if there is no message."""
        return self.finish not in (FinishReason.STOP, FinishReason.LENGTH)

    @classmethod
    def of(cls, record: Mapping[str, Any], event: Mapping[str, Plain]) -> Said:
        """A message as it was recorded."""
        said = cls(record["text"])
        said.finish, said.event = FinishReason(record["finish"]), event
        said.detail, said.failed_by = record["detail"], record["failed_by"]
        return said


class Grade(float):
    """The reward of a text; as a number 1 where it is right."""

    result: RewardResult

    @property
    def answer(self) -> str | None:
        """The answer that was found in the text."""
        found = self.result.info.get("answer")
        return None if found is None else str(found)

    @classmethod
    def of(cls, result: RewardResult) -> Grade:
        """A reward's result as a number."""
        grade = cls(result.value)
        grade.result = result
        return grade


@dataclass(frozen=True, slots=True)
class MessageRequest:
    """Request for a message, as `Agent.say` has it."""

    max_tokens: int | None
    whole: bool
    stop: tuple[str, ...]
    structured: Mapping[str, Any] | None
    turn: int | None


class Play(Protocol):
    """The episode, as its agents see it."""

    async def next_message(
        self, agent: Agent, heard: str | Sequence[Message] | None, message: MessageRequest
    ) -> Said:
        """The agent's next message, or the recorded one of an episode that is played again."""

    def end(
        self,
        finish: FinishReason = FinishReason.LIMIT,
        detail: str | None = None,
        failed_by: str | None = None,
    ) -> NoReturn:
        """Ends the episode."""


class Agent:
    """One role in one episode, with its list of messages."""

    def __init__(self, episode: Play, role: str) -> None:
        self._episode, self.role = episode, role
        self.speaker: Speaker | None = None
        """Its side of the conversation; None before it has heard anything."""
        self.messages = 0
        """Messages of this playing."""

    async def say(
        self,
        heard: str | Sequence[Message] | None = None,
        *,
        max_tokens: int | None = None,
        whole: bool = False,
        stop: Sequence[str] = (),
        structured: Mapping[str, Any] | None = None,
        turn: int | None = None,
        ends: bool = True,
    ) -> Said:
        """The agent's next message.

        Args:
            heard: what it reads before: a text, as the user's message, or messages of a chat; None: at
                first the chat of the request (the problem), later nothing may be None.
            max_tokens: most tokens of the message; None: what its role's limits leave.
            whole: whether the message is begun only where the agent's list of messages has room for
                `max_tokens`. Else there is none: finish reason `limit`, detail `list_full`.
            stop: strings that end it; they are part of it. One in the thinking part ends nothing.
            structured: what the engine holds it to, as vLLM's structured outputs; needs a trained policy.
            turn: noted of its tokens (annotation `turn`); None: the number of the agent's message, from 0.
            ends: whether a message that is cut, or that there is none of (the prompt is too long, the list of
                messages is full, a request failed), ends the episode with that finish reason, so that `play`
                is left here. Else `Said` says so.
        """
        message = MessageRequest(max_tokens, whole, tuple(stop), structured, turn)
        said = await self._episode.next_message(self, heard, message)
        if ends and said.failed:
            self._episode.end(said.finish, f"{self.role}: {said.detail or said.finish.value}", said.failed_by)
        if ends and said.cut:
            self._episode.end(said.finish, f"a message of the {self.role} was cut")
        return said


class Agents:
    """The agents of an episode by their roles' names."""

    def __init__(self, episode: Play, roles: Sequence[str]) -> None:
        self._by_role = {role: Agent(episode, role) for role in roles}

    def __getattr__(self, role: str) -> Agent:
        return self[role]

    def __getitem__(self, role: str) -> Agent:
        found = self.__dict__.get("_by_role", {})
        if role not in found:
            raise AttributeError(f"there is no agent {role!r}; the stage's writers are: {', '.join(found)}")
        return found[role]

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._by_role.values())


def check_says_something(role: str, record: Sequence[Mapping[str, Any]]) -> None:
    """Raises RuntimeError if the last `MAX_IN_VAIN` messages were cut or failed, without a text: a workflow
    that requests messages for ever would hold up its worker."""
    last = record[-MAX_IN_VAIN:]
    stopped = FinishReason.STOP.value
    if len(last) < MAX_IN_VAIN or any(one["text"] or one["finish"] == stopped for one in last):
        return
    finish, detail = last[-1]["finish"], last[-1]["detail"]
    why = detail or ("its list of messages is full" if finish == FinishReason.LENGTH.value else finish)
    raise RuntimeError(
        f"{role} was asked for {len(record) + 1} messages, the last {MAX_IN_VAIN} were cut or failed "
        f"({why}): `play` goes on for ever where say(…, ends=False) tells so by Said.cut and Said.failed"
    )
