"""Answers of a frozen policy behind an endpoint. (A file of its own: its client is slow to import.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.endpoints.chat import ChatEndpoint
from marsrl_verl.rollout.external.config import PolicyEndpoint

MAX_SEEDS = 2**31
"""Servers take seeds below it."""


class EndpointSource(ChatEndpoint):
    """Asks one request per answer. Implements `AnswerSource`; arguments as those of `ChatEndpoint`."""

    def __init__(
        self, settings: PolicyEndpoint, policy: str, *, api_key: str | None, concurrency: int, seed: int
    ) -> None:
        node = f"marsrl.policies.{policy}.endpoint"
        self._send_stop, self._send_sampling = settings.send_stop, settings.send_sampling
        super().__init__(settings, node, api_key=api_key, concurrency=concurrency, seed=seed)

    async def answer(
        self,
        request: RolloutRequest,
        k: int,
        messages: Sequence[Message],
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> ChatAnswer:
        name = f"{request.group_id}#{k}"
        more = {} if sampling is None or not self._send_sampling else sampling_body(sampling, name, messages)
        return await self.ask(name, messages, stop if self._send_stop else (), more)


def sampling_body(sampling: Sampling, name: str, messages: Sequence[Message]) -> dict[str, Any]:
    """A role's sampling as keys of a chat completion's body; a seed derives from the name of the answer."""
    seed = sampling.request_seed(name, len(messages))
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        **({} if sampling.top_k == -1 else {"top_k": sampling.top_k}),
        **({} if sampling.repetition_penalty == 1 else {"repetition_penalty": sampling.repetition_penalty}),
        **({} if seed is None else {"seed": seed % MAX_SEEDS}),
    }
