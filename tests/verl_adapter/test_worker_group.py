"""Ranks of a worker group: the port at which they meet, which no outgoing connection takes before the first
listens, and the limit on how long they may take."""

from __future__ import annotations

import inspect
import socket

import pytest

pytest.importorskip("verl", reason="verl's worker groups")

from fake_ray import Answer, FakeRay, actor
from ray.exceptions import ActorDiedError
from verl.single_controller.base.decorator import Dispatch, Execute, register
from verl.single_controller.ray import base

from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.rollout_server import engine_watch
from marsrl_verl.verl_adapter.run import worker_group
from marsrl_verl.verl_adapter.run.worker_group import (
    PORTS,
    MarsRLWorkerGroup,
    TrainerHangsError,
    master_ports,
)

RAY_WORKERS_LAST, LINUX_EPHEMERAL_FIRST = 19_999, 32_768


def choose(ports: list[int]) -> int:
    """verl's choice of one, in this process."""
    _, port = inspect.unwrap(base.get_master_addr_port._function)(ports)
    return int(port)


def group(**settings) -> MarsRLWorkerGroup:
    """One of workers that exist, none: it starts nothing."""
    return MarsRLWorkerGroup(worker_names=[], worker_handles=[], **settings)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.setattr(base.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(base.ray, "get_actor", lambda name: None)


def test_ports_are_those_of_nobody_else():
    ranges = [master_ports() for _ in range(200)]
    for first, end in ranges:
        assert RAY_WORKERS_LAST < PORTS[0] <= first < end <= PORTS[1] < LINUX_EPHEMERAL_FIRST
    assert len(set(map(tuple, ranges[:50]))) > 40, "runs that start together rarely try the same one"


def test_verl_takes_the_first_free_port_of_the_range():
    first, end = master_ports()
    port = choose([first, end])
    with socket.create_server(("", port)):
        assert port < choose([first, end]) < end


def test_a_worker_group_has_a_range_of_its_own_or_the_one_that_is_given():
    first, end = group()._ray_master_port_range
    assert PORTS[0] <= first < end <= PORTS[1]
    assert group(master_port_range=[5000, 5010])._ray_master_port_range == [5000, 5010]


# --- ranks that do not return -----------------------------------------------------------------------------


class Rank:
    """What verl binds methods of a group by."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update(self, rows): ...

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first(self): ...

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def begin(self): ...


LIMIT = 20.0


@pytest.fixture
def ranks(monkeypatch):
    """A group of two ranks whose answers are those of the test."""
    fake = FakeRay()
    for module in (engine_watch, worker_group):
        monkeypatch.setattr(module, "ray", fake)
    # A clock that only Ray's waiting moves.
    monkeypatch.setattr(worker_group, "Stopwatch", lambda: engine_watch.Stopwatch(fake.clock))
    monkeypatch.setattr(worker_group, "running_process", lambda one: f" (process {one.pid})")

    def make(*answers, limit: float | None = LIMIT):
        workers = [
            actor(update=lambda rows, one=one: one, first=lambda one=one: one, begin=lambda one=one: one)
            for one in answers
        ]
        for number, one in enumerate(workers):
            one.pid = 100 + number
        kind = worker_group.worker_group(limit)
        made = kind(worker_names=["one", "two"], worker_handles=workers)
        made._bind_worker_method(Rank, base.func_generator)
        return made, fake

    return make


@pytest.mark.parametrize("signal", [None, 15])
def test_ranks_that_return_in_time_are_as_in_verl(ranks, monkeypatch, signal):
    """A signal does not interrupt an update."""
    monkeypatch.setattr(stop_signals, "_requested", signal)
    made, _ = ranks(Answer(1), Answer(2))
    assert (made.update("rows"), made.first()) == ([1, 2], 1)
    assert [one.value for one in made.begin()] == [1, 2], "what does not block is not waited for"


def test_a_rank_that_hangs_ends_the_run_at_the_limit_by_name(ranks):
    made, fake = ranks(Answer(1), Answer(silent=True))
    with pytest.raises(TrainerHangsError, match=r"update .*training_timeout_s = 20 s.*1 of 2 .*rank 1 .*101"):
        made.update("rows")
    assert LIMIT <= fake.now <= LIMIT + 5


def test_without_a_limit_it_follows_the_calls_so_far(ranks, monkeypatch):
    monkeypatch.setattr(worker_group, "FIRST_S", 90.0)
    monkeypatch.setattr(worker_group, "LEAST_S", 30.0)
    answers = Answer(1), Answer(2)
    made, fake = ranks(*answers, limit=None)
    assert made._limit("update")[0] == 90.0
    for _ in range(worker_group.MEASURED):
        made.update("rows")
    assert made._limit("update")[0] == 30.0 and made._limit("first")[0] == 90.0, "by name"
    made._calls["update"] = 2, 2.5
    answers[1].silent, began = True, fake.now
    with pytest.raises(TrainerHangsError, match=r"50 s, where the longest of 2 before took 2 s.*limit"):
        made.update("rows")
    assert 50 <= fake.now - began <= 55


def test_a_rank_that_died_is_not_hidden_by_one_that_waits_for_it(ranks):
    made, fake = ranks(Answer(silent=True), Answer(error=ActorDiedError()))
    with pytest.raises(ActorDiedError):
        made.update("rows")
    assert fake.now <= 2 * engine_watch.POLL_S
