"""What a rollout program may do: the context of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from marsrl_verl.core.policy import Policy
from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput, Trajectory
from marsrl_verl.rollout.conversation import Conversation
from marsrl_verl.rollout.tool_protocol.chat import TurnParser
from marsrl_verl.tools.base import ToolCall, ToolResult


class Tools(Protocol):
    """The tools that a rollout program may call (`marsrl.tools`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """What can be called; empty in a run without tools."""

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        """The OpenAI schemas, for chat templates."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Do one call. Whatever goes wrong is its result."""

    def fork(self, parent: str, child: str, calls: int) -> None:
        """Trajectory `child` goes on from where `parent` had made so many calls."""


class RolloutContext(Protocol):
    """Everything that a rollout program of one request can ask for."""

    request: RolloutRequest

    @property
    def vocab_size(self) -> int:
        """Tokens that can be sampled: with it, entropies of the likeliest tokens are bounded
        (`rollout.entropy`)."""

    def policy(self, role: str) -> Policy:
        """The policy of a role."""

    def sampling(self, role: str) -> Sampling:
        """How the role's tokens are drawn in this request."""

    def conversation(
        self,
        k: int,
        role: str,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prefix: TokenSequence | None = None,
        state: Plain = None,
    ) -> Conversation:
        """A chat of trajectory `k` with the role's policy; the only builder of prompts.

        Args:
            k: the trajectory's number.
            role: whose policy writes.
            messages: the chat, ending where the policy's turn begins.
            tools: schemas for the chat template.
            prefix: what it has written already, its prompt included; the messages are not rendered again.
            state: of a conversation that was paused (`Conversation.state`), with its sequence as `prefix`.
        """

    def turn_parser(self, name: str) -> TurnParser:
        """What reads the tool calls of a model whose format has this name.

        Raises:
            ValueError: nothing here does.
        """

    async def chat(
        self, k: int, role: str, messages: Sequence[Message], stop: Sequence[str] = ()
    ) -> Trajectory:
        """One answer of a policy of which only text is known.

        Args:
            k: the trajectory's number.
            role: whose policy answers.
            messages: the whole chat.
            stop: strings behind which nothing is used; the answer may go on behind them.
        """

    @property
    def tools(self) -> Tools:
        """The tools of this worker. A program whose class says `calls_tools` may have some."""

    async def score(self, trajectories: Sequence[Trajectory], role: str | None = None) -> list[RewardResult]:
        """The rewards of ended trajectories of this request.

        Args:
            trajectories: what is scored.
            role: whose reward scores them; None: the request's.
        """

    def rng(self, *names: str | int) -> np.random.Generator:
        """A generator derived from (seed, group id, names), without state."""


class Rollout(Protocol):
    """A rollout program: one request in, one round's output out.

    Built once per worker: by `from_settings(settings)`, where its class has that, from the `marsrl` node (its
    method's settings are `settings.algo`); else without arguments. Its class says what it supports by the
    attributes `pauses`, `grows` and `calls_tools`; one that is left out is False, as is `forks(settings)`.

    `pauses`: it goes on with `request.resume`, so that responses may take several rounds
    (`marsrl.pipeline.max_segments`). `grows`: it begins trajectories in later rounds
    (`RolloutOutput.state`), so that parts of a group say nothing about the whole. `calls_tools`: it calls
    `context.tools`, so that `marsrl.tools` has an effect. `forks(settings)`, a class method: with these
    settings of the method it begins trajectories where others had called tools, and tells `context.tools`
    (`fork`, as `agent_loop.Agent.fork` does), so that tools that keep state have to follow.
    """

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        """Begin the request, or go on with `request.resume`, until all trajectories ended or the round's
        tokens are used."""
