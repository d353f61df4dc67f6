"""Answers of a frozen policy behind an endpoint. (A file of its own: its client is slow to import.)"""

from __future__ import annotations

from collections.abc import Sequence

from marsrl_verl.core.request import Message, RolloutRequest
from marsrl_verl.endpoints.answer import ChatAnswer
from marsrl_verl.endpoints.chat import ChatEndpoint
from marsrl_verl.rollout.frozen.config import PolicyEndpoint


class EndpointSource(ChatEndpoint):
    """Asks one request per answer. Implements `AnswerSource`; arguments as those of `ChatEndpoint`."""

    def __init__(
        self, settings: PolicyEndpoint, policy: str, *, api_key: str | None, concurrency: int, seed: int
    ) -> None:
        node = f"marsrl.policies.{policy}.endpoint"
        self._send_stop = settings.send_stop
        super().__init__(settings, node, api_key=api_key, concurrency=concurrency, seed=seed)

    async def answer(
        self, request: RolloutRequest, k: int, messages: Sequence[Message], stop: Sequence[str] = ()
    ) -> ChatAnswer:
        return await self.ask(f"{request.group_id}#{k}", messages, stop if self._send_stop else ())
