"""Tokens in, tokens out: requests of a rollout to the engines, and their answers; and texts of other
models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.core.sequence import LogProbs, TokenIds
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.endpoints.answer import ChatAnswer


class EngineUnavailableError(RuntimeError):
    """The engine itself is gone (not one request of it): the run cannot go on."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """Sampling settings of one engine request."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the completion; the tokens that spell them are kept."""
    top_log_probs: int = 0
    """Number of the likeliest tokens that are returned at every position; 0: none."""
    structured: Mapping[str, Any] | None = None
    """Structure of the text: `{"json": schema}`, `{"regex": pattern}`, `{"choice": [text, …]}` or
    `{"grammar": ebnf}`."""
    repetition_penalty: float = 1.0
    log_probs: bool = True
    """If true, log-probabilities of sampled tokens are returned, else 0 (but for `top_log_probs`)."""


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
    """Response of the engine: T tokens."""

    token_ids: TokenIds
    log_probs: LogProbs
    """(T,) under the sampling distribution; 0 where they were not requested."""
    finish: FinishReason
    """STOP (end token or stop string), LENGTH (`max_tokens` reached) or ABORTED."""
    stop: str | None = None
    """The stop string that ended it; None: an end token did, or nothing."""
    version: int = 0
    """The policy version that sampled it."""
    top: TopLogProbs | None = None
    forced: NDArray[np.bool_] | None = None
    """(T,) of a structured output: true for tokens that spell the only continuation that the structure allows
    here; None: nothing was forced."""


class GenerationClient(Protocol):
    """Sends prompts to the engines of a run."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """Samples `n` completions of one prompt in one engine request.

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


class AnswerSource(Protocol):
    """Answers for a policy of which only text is known: a model that is not trained here. Its trajectories
    have no sequences, since the tokens of another tokenizer would mean nothing to the trained model, and they
    never enter a loss."""

    async def answer(
        self,
        request: RolloutRequest,
        k: int,
        messages: Sequence[Message],
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> ChatAnswer:
        """Answer number `k` (of `request.n`) to a chat. One that could not be had is an answer with an error,
        never an exception.

        Args:
            stop: strings behind which nothing is used. The answer has the first one; it may go on.
            sampling: of the role, for those that take it.
        """
