"""The client of verl's LLM servers, with fakes for Ray's actors, and the router among them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl's servers")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from fake_ray import through_ray
from ray.exceptions import ActorDiedError, NodeDiedError
from verl.workers.rollout.llm_server import LLMServerClient
from vllm_answers import DECODING, PROMPT, answer

from marsrl_verl.rollout.generation import Completion, EngineUnavailableError
from marsrl_verl.verl_adapter.rollout_server import client as client_module
from marsrl_verl.verl_adapter.rollout_server.client import PolicyClients, ServerClient, packed
from marsrl_verl.verl_adapter.rollout_server.engine_requests import completion
from marsrl_verl.verl_adapter.rollout_server.router import GroupLoadBalancer


class Servers:
    """verl's `LLMServerClient` with one server behind it."""

    def __init__(self, give: Callable[[int], list]) -> None:
        self.give, self.calls, self.acquired, self.released = give, [], [], []
        self.reference: Any = None

    async def _acquire_server(self, request_id, **extra):
        self.acquired.append((request_id, extra["n"], extra["prompt_ids"].tolist()))
        return "server-0", SimpleNamespace(generate_packed=SimpleNamespace(remote=self._remote))

    def _release_server(self, server_id, request_id=None):
        self.released.append((server_id, request_id))

    def _remote(self, *arguments):
        self.reference = asyncio.ensure_future(self._generate(*arguments))
        return self.reference

    async def _generate(self, asked):
        *_, n = call = pickle.loads(asked)
        self.calls.append(call)
        return packed(self.give(n))


def ask(servers: Any, n: int = 2, synced: int = 3, policy: str = "planner") -> list[Completion]:
    client = ServerClient(servers, synced)
    call = client.generate(policy, PROMPT, DECODING, session="group", name="group#1", n=n)
    return asyncio.run(call)


def completed(one: Completion) -> tuple:
    return one.token_ids.tolist(), one.log_probs.tolist(), one.finish, one.version


def test_a_request_goes_whole_to_one_server():
    given = [completion(answer([1], "stop"), 3, DECODING), completion(answer([2], "length"), 3, DECODING)]
    servers = Servers(lambda n: given)
    assert [completed(one) for one in ask(servers)] == [completed(one) for one in given]
    ((policy, prompt, decoding, request_id, n),) = servers.calls
    assert (policy, decoding, n) == ("planner", DECODING, 2)
    assert (prompt.dtype, prompt.tolist()) == (np.int32, [5, 6])
    assert request_id.startswith("group#1:")
    assert servers.acquired == [("group@3", 2, [5, 6])]
    assert servers.released == [("server-0", "group@3")]


def test_sampled_tokens_are_counted():
    given = [completion(answer([1, 4], "stop"), 3, DECODING), completion(answer([2], "length"), 3, DECODING)]
    client = ServerClient(Servers(lambda n: given))
    for _ in range(2):
        asyncio.run(client.generate("planner", PROMPT, DECODING, session="group", name="group#1", n=2))
    assert client.tokens == 6


def test_a_session_is_a_new_one_after_a_weight_sync_and_a_request_of_the_engine_always():
    servers = Servers(lambda n: [])
    for synced in (3, 3, 4):
        ask(servers, synced=synced)
    assert [route for route, _, _ in servers.acquired] == ["group@3", "group@3", "group@4"]
    assert len({call[3] for call in servers.calls}) == 3


def test_requests_go_to_the_servers_of_their_policy():
    clients = {name: Servers(lambda n: []) for name in ("planner", "solver")}
    ask(PolicyClients(clients), policy="solver")
    assert clients["planner"].acquired == []
    assert clients["solver"].released == [("server-0", "group@3")]
    with pytest.raises(ValueError, match=r"no servers have the weights of policy 'judge', .*planner, solver"):
        ask(PolicyClients(clients), policy="judge")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ActorDiedError(), EngineUnavailableError),
        (NodeDiedError("the node is gone"), EngineUnavailableError),
        (through_ray(EngineUnavailableError("the engine's process has ended")), EngineUnavailableError),
        (through_ray(ValueError("no")), ValueError),
        (ValueError("no"), ValueError),
    ],
)
def test_a_server_is_released_whatever_it_raises(error, expected):
    def fails(n):
        raise error

    servers = Servers(fails)
    with pytest.raises(expected):
        ask(servers)
    assert servers.released == [("server-0", "group@3")]


async def asked_and_cancelled(servers: Servers, in_time: Callable[[], bool]) -> None:
    """A request that is cancelled as soon as it is time."""
    call = ServerClient(servers).generate("policy", PROMPT, DECODING, session="s", name="n")
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    while not in_time():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_server_that_comes_too_late_is_given_back():
    """Else the router takes it for busier than it is, until the run ends."""
    servers = Servers(lambda n: [])
    acquire = servers._acquire_server

    async def begin_and_cancel() -> None:
        there = asyncio.Event()

        async def slow(*arguments, **more):
            await there.wait()
            return await acquire(*arguments, **more)

        servers._acquire_server = slow
        await asked_and_cancelled(servers, lambda: True)
        there.set()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(begin_and_cancel())
    assert len(servers.acquired) == 1 and servers.calls == []
    assert servers.released == [("server-0", "s@0")]


def test_a_cancelled_request_is_cancelled_at_its_server(monkeypatch):
    servers, cancelled = Servers(lambda n: []), []
    monkeypatch.setattr(client_module.ray, "cancel", cancelled.append)

    async def never(*_):
        await asyncio.sleep(3600)

    servers._generate = never
    asyncio.run(asked_and_cancelled(servers, lambda: servers.reference is not None))
    assert cancelled == [servers.reference]
    assert servers.released == [("server-0", "s@0")]


# --- which server ---------------------------------------------------------------------------------


def test_a_group_counts_as_its_responses():
    router = GroupLoadBalancer({"a": None, "b": None})
    first, _ = router.acquire_server("group", n=8)
    other = ({"a", "b"} - {first}).pop()
    assert [router.acquire_server(f"single {index}", n=1)[0] for index in range(8)] == [other] * 8
    assert router.acquire_server("group", n=2)[0] == first, "an id stays where it is"
    assert router.get_status()["servers"] == {first: 10, other: 8}
    for name in ("group", "group", "unheard of"):
        router.release_server(first, name)
    assert router.get_inflight_count(first) == 0


def test_verls_client_tells_the_router_how_large_a_group_is_and_which_one_is_answered():
    router = GroupLoadBalancer({"a": None})

    def method(name: str) -> SimpleNamespace:
        async def answer(**asked: Any) -> Any:
            return getattr(router, name)(**asked)

        return SimpleNamespace(remote=lambda **asked: asyncio.ensure_future(answer(**asked)))

    names = ("require_acquire_fields", "require_release_fields", "acquire_server", "release_server")
    client = LLMServerClient(None, SimpleNamespace(**{name: method(name) for name in names}))

    async def loads() -> list[int]:
        found = []
        for name, n in (("group", 8), ("single", 1)):
            await client._acquire_server(name, n=n, prompt_ids=PROMPT)
            found.append(router.get_inflight_count("a"))
        client._release_server("a", "group")
        await asyncio.sleep(0)
        return [*found, router.get_inflight_count("a")]

    assert asyncio.run(loads()) == [8, 9, 1]


def test_an_engine_that_is_gone_gets_nothing():
    router = GroupLoadBalancer({"a": None, "b": None})
    gone, _ = router.acquire_server("group", n=8)
    router.remove_servers([gone])
    assert router.acquire_server("group", n=8)[0] != gone
    router.release_server(gone, "group")
    assert router.get_total_inflight() == 8
