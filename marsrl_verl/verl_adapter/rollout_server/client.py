"""Calls of verl's LLM servers for the `generate` of workflows."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from marsrl_verl.core.sequence import TokenIds
from marsrl_verl.rollout.generation import Completion, Decoding, EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server.engine_watch import is_refusal, reason


def packed(content: Any) -> bytes:
    """The content of a call of a server, or of its answer, in one piece. Upstream behaviour: Ray pickles
    everything but bytes with a pickler written in Python, each argument for itself, which costs either side
    more than a third of a millisecond of a call."""
    return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)


@dataclass
class PolicyClients:
    """verl's `LLMServerClient`s by policy, where each has servers of its own."""

    clients: dict[str, Any]

    def of(self, policy: str) -> Any:
        """The client that reaches a policy's servers; ValueError: no servers have its weights."""
        if policy not in self.clients:
            known = ", ".join(sorted(self.clients))
            raise ValueError(f"no servers have the weights of policy {policy!r}, those that do: {known}")
        return self.clients[policy]


@dataclass(slots=True)
class ServerClient:
    """Asks verl's load balancer for a server and sends it a whole request (`GenerationClient`). Routing stays
    verl's: `LLMServerClient._acquire_server`, `_release_server` (`OneServerClient` where there is one)."""

    llm_client: Any
    """verl's `LLMServerClient`, or `PolicyClients`."""
    synced: int = 0
    """Weight syncs so far, each of which emptied the engines' caches: a session is a new one for the router
    after it. The same for all clients of a round."""
    tokens: int = 0
    """Tokens sampled so far, in all answers."""

    async def generate(
        self, policy: str, prompt_ids: TokenIds, decoding: Decoding, *, session: str, name: str, n: int = 1
    ) -> list[Completion]:
        """See `marsrl_verl.rollout.generation.GenerationClient`. One request of the engine, never split;
        cancelled, it is aborted there. EngineUnavailableError: the server or its engine is gone."""
        llm_client = self.llm_client
        if isinstance(llm_client, PolicyClients):
            llm_client = llm_client.of(policy)
        route = f"{session}@{self.synced}"
        server_id, server = await _acquired(llm_client, route, prompt_ids, n)
        # A fresh engine id: a resumed run sends a request of the same name again.
        request_id = f"{name}:{uuid.uuid4().hex[:8]}"
        try:
            reference = server.generate_packed.remote(packed((policy, prompt_ids, decoding, request_id, n)))
            answers: list[Completion] = pickle.loads(await reference)
            self.tokens += sum(len(one.token_ids) for one in answers)
            return answers
        except asyncio.CancelledError:
            ray.cancel(reference)  # of an asynchronous actor: its task is cancelled, too
            raise
        except RayError as error:
            if is_refusal(error):
                raise
            raise EngineUnavailableError(f"vLLM server {server_id} is gone: {reason(error)}") from error
        finally:
            llm_client._release_server(server_id, request_id=route)


async def _acquired(llm_client: Any, route: str, prompt_ids: TokenIds, n: int) -> tuple[str, Any]:
    """Acquires a server. One that comes after this was cancelled is given back at once, or the router would
    take it for busier than it is."""

    def give_back(acquired: asyncio.Future[tuple[str, Any]]) -> None:
        if not acquired.cancelled() and acquired.exception() is None:
            llm_client._release_server(acquired.result()[0], request_id=route)

    acquisition = asyncio.ensure_future(llm_client._acquire_server(route, prompt_ids=prompt_ids, n=n))
    try:
        return await asyncio.shield(acquisition)
    except asyncio.CancelledError:
        acquisition.add_done_callback(give_back)
        raise
