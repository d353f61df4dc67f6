"""One trajectory of an agent with tools: it writes up to a call or its end, the call is done, it reads the
result and writes on.

Nothing here waits for another trajectory. What a tool says is appended as tokens with mask 0. A call that
fails, a result that is too long and a call too many are data: what the model reads, events, a finish reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.context import Tools
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.generation import Completion
from marsrl_verl.rollout.tool_protocol.base import RequestedCall, ToolProtocol, inert_result, truncate_text
from marsrl_verl.settings.choices import Choice
from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolResult
from marsrl_verl.tools.toolbox import LIMITED, Toolbox, event

CALL_LIMIT = "call_limit"
"""`Trajectory.detail` of one that requested a call too many."""
_NO_OUTPUT = "(no output)"
_NO_CALLS_LEFT = "No call is left. Answer now."


class AtLimit(Choice):
    """Treatment of a call after the last one that is allowed."""

    END = "end"
    """The trajectory ends (finish reason `limit`); of a turn with one call too many, none is executed."""
    TELL = "tell"
    """The calls that are left are executed; the first one beyond them is answered, once, with a note that
    none is left, and the model writes on. A further call ends the trajectory."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of a trajectory, beside its role's."""

    calls: int
    """Most calls that it may request, rejected ones included."""
    result_tokens: int
    """Most tokens of a result."""
    at_limit: AtLimit = AtLimit.END


class Step(Enum):
    """State in which `Agent.write` leaves the trajectory."""

    PART = "part"
    """It has as many new tokens as were requested, and may go on."""
    CALLS = "calls"
    """It has calls that are to be executed."""
    ENDED = "ended"
    """It has ended (`Agent.finish`)."""
    PAUSED = "paused"
    """The round's tokens are used."""


@dataclass(slots=True)
class Agent:
    """A trajectory on its way."""

    chat: Conversation
    protocol: ToolProtocol
    tools: Tools | Toolbox
    limits: AgentLimits
    turn: int = 0
    """Results that it has read, or turns with a call: several calls of one turn are answered together."""
    calls: int = 0
    """Calls that it has requested."""
    begins_at: int = 0
    """Response tokens before the turn that is being written."""
    told: bool = False
    """True if it has read that no call is left."""
    events: list[dict[str, Plain]] = field(default_factory=list)
    """Its calls, also those before a fork (`by`: number of the trajectory that made it)."""
    finish: FinishReason | None = None
    """Finish reason; None while it goes on."""
    detail: str | None = None
    failed_by: str | None = None
    _requested: list[RequestedCall] = field(default_factory=list)

    async def write(
        self, *, max_tokens: int | None = None, top_log_probs: int = 0
    ) -> tuple[Step, Completion]:
        """Lets the model write on (as `Conversation.sample`): how that ended, and what it added."""
        chat = self.chat
        completion = await chat.sample(
            max_tokens=max_tokens, stop=self.protocol.stop, top_log_probs=top_log_probs, turn=self.turn
        )
        if completion.finish is FinishReason.PAUSED:
            return Step.PAUSED, completion
        if completion.finish is FinishReason.LENGTH and max_tokens is not None and chat.tokens_left:
            return Step.PART, completion
        if completion.finish is FinishReason.STOP:
            turn = chat.sequence().response_ids[self.begins_at :]
            self._requested = await self.protocol.calls(turn, completion.stop, chat.tokenizer)
            # A call in the last token leaves no room for its result.
            if self._requested and chat.tokens_left:
                return Step.CALLS, completion
            if self._requested:
                self._end(FinishReason.LENGTH, None)
                return Step.ENDED, completion
        self._end(completion.finish, chat.detail, chat.failed_by)
        return Step.ENDED, completion

    async def call(self) -> bool:
        """Does the calls of the turn that was written, and lets the model read their results. False: the
        limit of calls ended it."""
        requested, self._requested = self._requested, []
        left = self.limits.calls - self.calls
        if over := len(requested) > left:
            if self.told or self.limits.at_limit is AtLimit.END:
                self._end(FinishReason.LIMIT, CALL_LIMIT)
                return False
            requested = requested[: left + 1]
        before = [self._earlier(one, requested[:number]) for number, one in enumerate(requested)]
        done = await asyncio.gather(*map(self._done, range(len(requested)), requested, before))
        self.told = self.told or over
        self.calls = min(self.calls + len(requested), self.limits.calls)
        # Half of what is left at most, so that the model can write on.
        limit = min(self.limits.result_tokens, self.chat.tokens_left // 2 // len(requested))
        texts = []
        for one, result, noted in done:
            text, tokens, cut = truncate_text(self._inert(result), limit, self.chat.tokenizer)
            noted |= {"turn": self.turn, "by": self.chat.k, "tokens": tokens, "cut": cut}
            self.events.append(noted)
            texts.append((one, text))
        self.protocol.append(self.chat, texts)
        self.turn, self.begins_at = self.turn + 1, len(self.chat)
        return True

    def _earlier(self, one: RequestedCall, turn: Sequence[RequestedCall]) -> int:
        """Calls of a tool that ran, and those in front of this one in its turn."""
        ran = sum(bool(event["executed"]) and event["tool"] == one.name for event in self.events)
        return ran + sum(other.name == one.name and other.problem is None for other in turn)

    async def _done(
        self, number: int, one: RequestedCall, earlier: int
    ) -> tuple[RequestedCall, ToolResult, dict[str, Plain]]:
        """A call of the turn with its result and the event that says so."""
        name = f"{self.chat.trajectory_id}/{self.calls + number}"
        call = ToolCall(one.name, one.arguments, name, earlier=earlier)
        if over := self.calls + number >= self.limits.calls:
            result = ToolResult(_NO_CALLS_LEFT, ToolOutcome.REFUSED, attempts=0)
        elif one.problem is not None:
            result = ToolResult(one.problem, ToolOutcome.REFUSED, attempts=0)
        else:
            result = await self.tools.call(call)
        return one, result, {**event(call, result), "over_limit": over or LIMITED in result.info}

    def _inert(self, result: ToolResult) -> str:
        nothing = _NO_OUTPUT if result.outcome is ToolOutcome.OK else f"({result.outcome})"
        return inert_result(result.text.strip() or nothing, self.protocol.tags, self.chat.tokenizer)

    def _end(self, finish: FinishReason, detail: str | None, failed_by: str | None = None) -> None:
        self.finish, self.detail, self.failed_by = finish, detail, failed_by

    # --- forks and pauses ----------------------------------------------------------------------

    def fork(self, k: int, at: ReadResult) -> Agent:
        """Trajectory `k`, which goes on from where this one had read a result."""
        events = [dict(one) for one in self.events[: at.events]]
        chat = self.chat.fork(k, at=at.tokens)
        self.tools.fork(self.chat.trajectory_id, chat.trajectory_id, at.calls)
        return Agent(
            chat, self.protocol, self.tools, self.limits,
            turn=at.turn, calls=at.calls, begins_at=at.tokens, told=at.told, events=events,
        )  # fmt: skip

    def place(self) -> ReadResult:
        """Returns its position after it has read a result and before it writes on."""
        return ReadResult(self.turn, self.calls, self.begins_at, len(self.events), self.told)

    def state(self) -> dict[str, Plain]:
        """Returns the state that a later round needs to go on, beside the sequence and the events."""
        return {
            "chat": self.chat.state(), "turn": self.turn, "calls": self.calls, "begins_at": self.begins_at,
            "told": self.told, "finish": None if self.finish is None else self.finish.value,
            "detail": self.detail, "failed_by": self.failed_by,
        }  # fmt: skip

    @classmethod
    def resumed(
        cls,
        chat: Conversation,
        protocol: ToolProtocol,
        tools: Tools | Toolbox,
        limits: AgentLimits,
        state: Mapping[str, Any],
        events: list[dict[str, Plain]],
    ) -> Agent:
        """The trajectory of `state()`; `chat` goes on with its part of it."""
        known = {name: value for name, value in state.items() if name != "chat"}
        finish = None if state["finish"] is None else FinishReason(state["finish"])
        return cls(chat, protocol, tools, limits, events=events, **{**known, "finish": finish})


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Position at which a trajectory had read the results of a turn: it can be forked there later."""

    turn: int
    calls: int
    tokens: int
    events: int
    told: bool = False
