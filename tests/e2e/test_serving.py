"""The official client against a real server: Ray, vLLM on the processor, HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import contextmanager

import httpx
import openai
import psutil
import pytest
from faults import kill_core
from training_runs import START_TIMEOUT_S, started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]
KEY = "sesame"


def ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition, process, log) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-6000:]
        time.sleep(0.1)  # polling another process


@contextmanager
def serving(root, name: str, *words: str):
    """The process, its log, and its address once it answers."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    named = (f"marsrl.serve.port={port}", "marsrl.serve.api_key_env=SERVED_WITH", *words)
    with started(root, name, *named, program="recipe.marsrl.serve") as (process, log):
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: ready(address), process, log)
        yield process, log, address


def figure(address: str, name: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def ask(client: openai.AsyncOpenAI, number: int, **fields):
    chat = [{"role": "user", "content": f"Compute {number % 10}+5-3"}]
    return await client.chat.completions.create(**{"model": "tiny", "messages": chat, **fields})


async def clients(address: str, process, log, kill) -> None:
    """What clients do, one thing after the other."""
    client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x").models.list()
    greedy = await ask(client, 7, temperature=0)
    assert greedy.choices[0].message.content.endswith("\\boxed{9}") and greedy.run["end"] == "accepted"
    assert [one["role"] for one in greedy.run["trail"]] == ["solver", "verifier"]
    together = await asyncio.gather(*[ask(client, number) for number in range(50)])
    assert len({one.id for one in together}) == 50
    assert all(one.usage.completion_tokens > 0 for one in together)
    again = await asyncio.gather(*[ask(client, number, seed=1) for number in (*range(8), *range(8))])
    texts = [[entry["text"] for entry in one.run["trail"]] for one in again]
    assert texts[:8] == texts[8:]
    chunks = [one async for one in await ask(client, 7, temperature=0, stream=True)]
    events = [one.run["event"] for one in chunks if "run" in one.model_extra]
    assert events == ["begins", "ends"] * 2 + ["answer"]

    left = [asyncio.ensure_future(ask(client, number)) for number in range(40)]
    await asyncio.sleep(0.1)  # some have reached the engine by then
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    wait_until(lambda: figure(address, "marsrl_runs_running ") == 0, process, log)
    assert figure(address, "marsrl_runs_waiting ") == 0

    asked = [asyncio.ensure_future(ask(client, number)) for number in range(100)]
    await asyncio.sleep(0.1)
    kill()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    broken = [one for one in outcomes if isinstance(one, openai.APIStatusError)]
    assert broken and {one.status_code for one in broken} == {503}
    wait_until(lambda: ready(address), process, log)
    assert (await ask(client, 7, temperature=0)).choices == greedy.choices
    assert figure(address, "marsrl_engine_restarts_total ") == 1


def test_clients_come_and_go_and_an_engine_dies_and_comes_back(tmp_path, monkeypatch):
    monkeypatch.setenv("SERVED_WITH", KEY)
    with serving(tmp_path, "tiny", "marsrl.serve.max_running=20") as (process, log, address):
        asyncio.run(clients(address, process, log, lambda: kill_core(psutil.Process(process.pid))))
        family = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        _, left = psutil.wait_procs(family, timeout=20)
        assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []
    assert KEY not in log.read_text() and KEY not in (tmp_path / "tiny" / "config.yaml").read_text()
