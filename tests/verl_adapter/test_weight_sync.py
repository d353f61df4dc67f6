"""Weights between two pools over gloo, and engines that get a pool of their own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo import ray_trainer
from verl.workers.rollout.llm_server import LLMServerClient

from marsrl_verl.verl_adapter.cpu.weight_sync import GlooWeightSync
from marsrl_verl.verl_adapter.rollout_server.rollout_pool import (
    GroupServerManager,
    OwnPoolServerManager,
    engines_placed,
)
from marsrl_verl.verl_adapter.rollout_server.router import GroupLoadBalancer

WEIGHTS = {
    "small": torch.arange(3, dtype=torch.bfloat16),
    "odd": torch.arange(7, dtype=torch.uint8),
    "matrix": torch.randn(5, 9),
    "larger than a bucket": torch.randn(40, 10),
    "last": torch.tensor([1.5], dtype=torch.float64),
}
"""By name, of several formats: places in a bucket must suit each of them."""


def sync(bucket: int, trainers: int, engines: int, rounds: int = 1) -> list[list[dict[str, torch.Tensor]]]:
    """What every engine process receives in every round; all processes are threads here."""
    senders = [GlooWeightSync(bucket, is_master=rank == 0) for rank in range(trainers)]
    receivers = [GlooWeightSync(bucket) for _ in range(engines)]
    received: list[list[dict[str, torch.Tensor]]] = []

    def join(engine: GlooWeightSync, arguments: dict[str, list], place: int) -> None:
        engine.init_process_group(**{name: values[place] for name, values in arguments.items()})

    async def receive(engine: GlooWeightSync, shift: int) -> dict[str, torch.Tensor]:
        return {name: weight.clone() async for name, weight in engine.receive_weights(shift)}

    def send(engine: GlooWeightSync, weights: dict[str, torch.Tensor]) -> None:
        asyncio.run(engine.send_weights(iter(weights.items())))

    with ThreadPoolExecutor(trainers + engines) as threads:
        for shift in range(rounds):
            metadata = [engine.prepare() for engine in [*senders, *receivers]]
            to_trainers, to_engines = GlooWeightSync.build_topology(trainers, engines, metadata)
            joins = [threads.submit(join, one, to_trainers, rank) for rank, one in enumerate(senders)]
            joins += [threads.submit(join, one, to_engines, rank) for rank, one in enumerate(receivers)]
            for one in joins:
                one.result(timeout=60)
            shifted = {name: weight + shift for name, weight in WEIGHTS.items()}
            sending = [threads.submit(send, one, shifted) for one in senders]
            receiving = [threads.submit(asyncio.run, receive(one, shift)) for one in receivers]
            received.append([one.result(timeout=60) for one in receiving])
            for one in sending:
                one.result(timeout=60)
            for engine in [*senders, *receivers]:
                engine.finalize()
    return received


@pytest.mark.parametrize(
    ("bucket", "trainers", "engines"), [(64, 1, 1), (1000, 2, 1), (10**6, 1, 2), (64, 2, 2)]
)
def test_every_engine_gets_every_weight(bucket, trainers, engines):
    (received,) = sync(bucket, trainers, engines)
    assert len(received) == engines
    for weights in received:
        assert list(weights) == list(WEIGHTS)
        for name, weight in WEIGHTS.items():
            assert weights[name].dtype == weight.dtype
            assert torch.equal(weights[name], weight)


def test_the_group_serves_one_sync_after_another():
    for shift, (weights,) in enumerate(sync(1000, 1, 1, rounds=3)):
        assert torch.equal(weights["matrix"], WEIGHTS["matrix"] + shift)


def test_the_meeting_place_is_at_one_address_alone():
    engine = GlooWeightSync(1000, is_master=True)
    meeting = engine.prepare()
    listening = {
        one.laddr.ip
        for one in psutil.Process().net_connections(kind="tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == meeting.port
    }
    assert listening == {meeting.host}


def test_a_process_with_another_rank_is_refused():
    engine = GlooWeightSync(1000)
    engine._place = (1, 2)
    with pytest.raises(RuntimeError, match="cannot join or leave"):
        engine.init_process_group(1, 3, None)


def test_receiving_before_joining_is_refused():
    with pytest.raises(RuntimeError, match="init_process_group was not called"):
        asyncio.run(anext(GlooWeightSync(1000)._receive_chunks()))


def rollout(nodes: int):
    node = {"nnodes": nodes, "n_gpus_per_node": 2, "name": "vllm", "disaggregation": {"enabled": False}}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": node, "model": {}}})


def group_manager(own: dict) -> GroupServerManager:
    config = rollout(1)
    config.actor_rollout_ref.rollout.update(own)
    return GroupServerManager(config, worker_group=SimpleNamespace(world_size=4))


def test_the_server_manager_changes_for_engines_of_their_own_and_only_while_workers_start():
    usual = ray_trainer.LLMServerManager
    with engines_placed(rollout(0)):
        assert ray_trainer.LLMServerManager is GroupServerManager
    with pytest.raises(ZeroDivisionError), engines_placed(rollout(1)):
        assert ray_trainer.LLMServerManager is OwnPoolServerManager
        raise ZeroDivisionError
    assert ray_trainer.LLMServerManager is usual


@pytest.mark.parametrize("own", [{}, {"router_config_path": "r.yaml"}, {"full_determinism": True}])
def test_the_router_is_ours_unless_another_is_asked_for(own):
    manager = group_manager(own)
    assert manager._load_balancer_cls is (None if own else GroupLoadBalancer)


@pytest.mark.parametrize(
    ("servers", "own", "asks"),
    [(1, {}, False), (2, {}, True), (1, {"router_config_path": "r.yaml"}, True), (0, {}, True)],
)
def test_one_engine_is_asked_without_a_router(servers, own, asks):
    manager = group_manager(own)
    manager.server_addresses = [f"address {one}" for one in range(servers)]
    manager.server_handles = [f"handle {one}" for one in range(servers)]
    manager.global_load_balancer = None  # a call of it fails
    client = manager.get_client()
    if asks:
        assert type(client) is LLMServerClient
        return
    assert asyncio.run(client._acquire_server("session@0", prompt_ids=[1], n=8)) == ("address 0", "handle 0")
    client._release_server("address 0", request_id="session@0")
    assert type(manager.get_client(LLMServerClient)) is LLMServerClient


def test_engines_of_their_own_do_not_get_the_trainers_workers():
    workers = SimpleNamespace(world_size=4)
    manager = OwnPoolServerManager(rollout(1), worker_group=workers, rollout_resource_pool="pool")
    assert manager.worker_group is None
    assert manager.rollout_resource_pool is None
