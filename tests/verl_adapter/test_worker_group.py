"""The port at which a worker group's ranks meet: no outgoing connection takes it before the first listens."""

from __future__ import annotations

import inspect
import socket

import pytest

pytest.importorskip("verl", reason="verl's worker groups")

from verl.single_controller.ray import base

from marsrl_verl.verl_adapter.run.worker_group import PORTS, MarsRLWorkerGroup, master_ports

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
    for _ in range(200):
        first, end = master_ports()
        assert RAY_WORKERS_LAST < PORTS[0] <= first < end <= PORTS[1] < LINUX_EPHEMERAL_FIRST


def test_runs_that_start_together_rarely_try_the_same_one():
    assert len({master_ports()[0] for _ in range(50)}) > 40


def test_verl_takes_the_first_free_port_of_the_range():
    first, end = master_ports()
    port = choose([first, end])
    with socket.create_server(("", port)):
        assert port < choose([first, end]) < end


def test_a_worker_group_has_a_range_of_its_own():
    first, end = group()._ray_master_port_range
    assert PORTS[0] <= first < end <= PORTS[1]


def test_a_range_that_is_given_stays():
    assert group(master_port_range=[5000, 5010])._ray_master_port_range == [5000, 5010]
