"""A run on a Ray of its own opens no port to other machines."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from inspect import signature
from types import SimpleNamespace

import psutil
import pytest
import torch
from fresh_python import report_of, start_fresh

from marsrl_verl.verl_adapter import loopback
from marsrl_verl.verl_adapter.run.launch import quiet_third_parties


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch):
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(rendezvous, "_create_c10d_store", rendezvous._create_c10d_store)
    before = dict(os.environ)
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def listening_at(port: int) -> set[str]:
    return {
        one.laddr.ip
        for one in psutil.Process().net_connections(kind="inet")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    }


def stores(ranks: int, port: int) -> list:
    """What torch makes of the address of a process group, rank by rank."""

    def make(rank: int):
        method = f"tcp://127.0.0.1:{port}"
        return next(torch.distributed.rendezvous(method, rank, ranks, timeout=timedelta(seconds=30)))[0]

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(make, range(ranks)))


def test_a_store_of_the_run_listens_on_the_loopback_interface_alone():
    port = free_port()
    upstream = stores(1, port)
    assert listening_at(port) & {"::", "0.0.0.0"}, "why this is needed"
    loopback.stay_on_loopback()
    loopback.keep_stores_on_loopback()
    port = free_port()
    first, second = stores(2, port)
    assert listening_at(port) == {"127.0.0.1"}
    first.set("a", "1")
    assert second.get("a") == b"1"
    del upstream


def test_it_takes_the_place_of_a_function_of_torchs_with_the_same_arguments():
    upstream = importlib.import_module("torch.distributed.rendezvous")._create_c10d_store
    assert list(signature(loopback.create_store).parameters) == list(signature(upstream).parameters)


def test_a_cluster_has_its_own_addresses():
    quiet_third_parties(own_cluster=False)
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
    before = importlib.import_module("torch.distributed.rendezvous")._create_c10d_store
    loopback.keep_stores_on_loopback()
    assert importlib.import_module("torch.distributed.rendezvous")._create_c10d_store is before


ENTERED_BY_VERL = """
import json, sys
from marsrl_verl.verl_adapter import register
from marsrl_verl.verl_adapter.loopback import create_store
import torch.distributed
print(json.dumps(sys.modules["torch.distributed.rendezvous"]._create_c10d_store is create_store))
"""


def test_every_process_of_verl_keeps_its_stores_there():
    # Also those that none of our classes is in, such as the ones that feed engines of their own.
    addresses = ("127.0.0.1", "10.0.0.1")
    started = [start_fresh(ENTERED_BY_VERL, {"VLLM_HOST_IP": address}) for address in addresses]
    assert [report_of(process) for process in started] == [True, False]


def test_the_users_own_choice_stays():
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"
    quiet_third_parties(own_cluster=True)
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"
    assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"


@pytest.fixture
def served(monkeypatch):
    """A server whose engine is there at once, and the applications that were served over HTTP."""
    pytest.importorskip("verl", reason="verl's vLLM server")
    pytest.importorskip("vllm", reason="verl's vLLM server")
    from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMServer, vllm_async_server

    applications = []

    async def run_uvicorn(app, args, address):
        applications.append(app)
        return 8000, "task"

    async def run_server(self, args):
        called = vllm_async_server.run_uvicorn(args.app, args, self._server_address)
        self._server_port, self._server_task = await called

    monkeypatch.setattr(vllm_async_server, "run_uvicorn", run_uvicorn)
    monkeypatch.setattr(vllm_async_server.vLLMHttpServer, "run_server", run_server)
    server = MarsRLvLLMServer.__new__(MarsRLvLLMServer)
    server._server_address, server._master_port = "10.0.0.1", 4711
    server._own_adapters = frozenset()
    yield server, applications
    assert vllm_async_server.run_uvicorn is run_uvicorn, "put back"


def application():
    routes = [SimpleNamespace(path=path) for path in ("/v1/completions", "/metrics", "/tokenize", "/health")]
    return SimpleNamespace(router=SimpleNamespace(routes=routes))


@pytest.mark.parametrize("statistics", [False, True])
def test_the_engine_is_not_served_over_http(served, statistics):
    server, applications = served
    server.config = SimpleNamespace(prometheus=SimpleNamespace(enable=statistics))
    asyncio.run(server.run_server(SimpleNamespace(app=application())))
    paths = [[route.path for route in app.router.routes] for app in applications]
    assert paths == ([["/metrics", "/health"]] if statistics else [])
    assert server.get_server_address() == ("10.0.0.1", 8000 if statistics else 4711)
