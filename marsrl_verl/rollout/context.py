"""What a rollout program may do: the context of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.policy import Policy
from marsrl_verl.core.request import Message, Plain, RolloutRequest, Sampling
from marsrl_verl.core.sequence import LogProbs, TokenIds
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput, Trajectory

if TYPE_CHECKING:
    from marsrl_verl.rollout.conversation import Conversation

FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
"""Regular ends as vLLM and OpenAI-compatible endpoints name them."""


class EngineUnavailableError(RuntimeError):
    """The engine itself is gone (not one request of it): the run cannot go on."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the tokens of one engine request are drawn."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the completion; the tokens that spell them are kept."""
    top_log_probs: int = 0
    """How many of the likeliest tokens are told at every position; 0: none."""
    structured: Mapping[str, Any] | None = None
    """What the text must be: `{"json": schema}`, `{"regex": pattern}`, `{"choice": [text, …]}` or
    `{"grammar": ebnf}`."""


@dataclass(frozen=True, slots=True, eq=False)
class TopLogProbs:
    """The likeliest tokens at each of T positions, under the sampling distribution."""

    ids: NDArray[np.int32]
    """(T, m)"""
    log_probs: NDArray[np.float32]
    """(T, m) falling."""

    def tail(self) -> NDArray[np.float64]:
        """(T,) log of the probability of all other tokens; -inf where nothing is left."""
        rest = 1.0 - np.exp(self.log_probs.astype(np.float64)).sum(axis=1)
        with np.errstate(divide="ignore"):
            return np.log(np.clip(rest, 0.0, None))


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What the engine answered: T tokens."""

    token_ids: TokenIds
    log_probs: LogProbs
    """(T,) under the sampling distribution."""
    finish: FinishReason
    """STOP (end token or stop string), LENGTH (`max_tokens` reached) or ABORTED."""
    stop: str | None = None
    """The stop string that ended it; None: an end token did, or nothing."""
    version: int = 0
    """The policy version that sampled it."""
    top: TopLogProbs | None = None


class GenerationClient(Protocol):
    """Sends prompts to the engines of a run."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """Sample `n` completions of one prompt in one engine request.

        Args:
            policy: whose weights answer.
            prompt_ids: (P,)
            decoding: how.
            session: requests of one session go to one server, which holds their common beginning in its
                cache, until the next weight sync.
            name: of this request, for logs.
            n: how many.

        Raises:
            EngineUnavailableError: the engine is gone. Whatever else it raises concerns this request alone.
        """
        ...


class RolloutContext(Protocol):
    """Everything that a rollout program of one request can ask for."""

    request: RolloutRequest

    def policy(self, role: str) -> Policy:
        """The policy of a role."""
        ...

    def sampling(self, role: str) -> Sampling:
        """How the role's tokens are drawn in this request."""
        ...

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
        ...

    async def chat(self, k: int, role: str, messages: Sequence[Message]) -> Trajectory:
        """One answer of a policy of which only text is known."""
        ...

    async def score(self, trajectories: Sequence[Trajectory]) -> list[RewardResult]:
        """The rewards of ended trajectories of this request."""
        ...

    def rng(self, *names: str | int) -> np.random.Generator:
        """A generator derived from (seed, group id, names), without state."""
        ...


class Rollout(Protocol):
    """A rollout program: one request in, one round's output out.

    Built once per worker: by `from_settings(settings)`, where its class has that, from the `marsrl` node (its
    method's settings are `settings.algo`); else without arguments.
    """

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        """Begin the request, or go on with `request.resume`, until all trajectories ended or the round's
        tokens are used."""
        ...
