"""How often engines that die are started anew."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the engines are started by verl")
pytest.importorskip("vllm", reason="verl's servers import it")

from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.serving.config import ServeConfig
from marsrl_verl.verl_adapter.run import server as module
from marsrl_verl.verl_adapter.run.server import SystemServer


@pytest.fixture
def died(monkeypatch):
    """A server whose engines die once more, after so many runs that ended; returns what answers then."""
    monkeypatch.setattr(module, "POLL_S", 0.0)
    one = SystemServer.__new__(SystemServer)
    one.settings = SimpleNamespace(serve=ServeConfig(max_restarts=2))
    one._ended_runs = one._restarts = 0
    managers = [SimpleNamespace(answer=number) for number in range(99)]
    watch = SimpleNamespace(begin=lambda: None)
    one.system = SimpleNamespace(restart=lambda: managers.pop(0), watch=watch)
    taken = []
    one.service = SimpleNamespace(down="it died", ended=0, take_up=taken.append)

    async def die(ended: int = 0):
        one._failed = asyncio.Event()
        one._failed.set()
        one.service.ended += ended
        await one._restart()
        assert not one._failed.is_set()
        return taken[-1]

    return lambda *ended: asyncio.run(die(*ended))


def test_engines_that_die_at_once_again_are_given_up(died):
    assert [died(), died()] == [0, 1]
    with pytest.raises(EngineUnavailableError, match=r"it died; marsrl\.serve\.max_restarts = 2 in a row"):
        died()


def test_a_run_that_ended_in_between_makes_the_next_death_the_first(died):
    assert [died(), died(), died(1), died()] == [0, 1, 2, 3]
    with pytest.raises(EngineUnavailableError):
        died()
