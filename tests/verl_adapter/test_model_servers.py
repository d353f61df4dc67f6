"""Engines of several models: where each runs, and who sends it weights."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl", reason="verl's servers")
pytest.importorskip("vllm", reason="vLLM's sampling parameters")

from verl.trainer.ppo import ray_trainer
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from marsrl_verl.config.models import first_replica, part_of
from marsrl_verl.verl_adapter.rollout_server import rollout_pool, weight_transfer
from marsrl_verl.verl_adapter.rollout_server.rollout_pool import ModelServerManager, engines_placed
from marsrl_verl.verl_adapter.rollout_server.server import MarsRLvLLMReplica
from marsrl_verl.verl_adapter.rollout_server.weight_transfer import OwnSocketAdapter

PATHS = {"planner": "/models/a", "solver": "/models/b"}


def config(tensor: int = 2) -> Any:
    rollout = {
        "nnodes": 0, "n_gpus_per_node": 8, "name": "vllm", "gpu_memory_utilization": 0.8,
        "tensor_model_parallel_size": tensor, "data_parallel_size": 1, "pipeline_model_parallel_size": 1,
        "custom": {"adapters": [], "models": PATHS}, "disaggregation": {"enabled": False},
    }  # fmt: skip
    model = {"path": "/models/a", "hf_config_path": "/models/a", "tokenizer_path": None}
    node = {"rollout": rollout, "model": model, "actor": {"optim": {"lr": 1e-6}}}
    return OmegaConf.create({"actor_rollout_ref": node})


class Replica(MarsRLvLLMReplica):
    """An engine that notes what it is told."""

    def __init__(self, rank: int, size: int) -> None:
        self.replica_rank, self.world_size = rank, size
        self.slept = 0

    async def launch_servers(self) -> None:
        self.launched = True

    async def sleep(self) -> None:
        self.slept += 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_engines_of_every_model_are_on_all_gpus(number):
    group, first = SimpleNamespace(world_size=4, workers=[10, 11, 12, 13]), first_replica(number, 4, 2)
    found = [Replica(first + place, size=2) for place in range(2)]
    for one in found:
        asyncio.run(one.init_hybrid(group))
    assert [one.workers for one in found] == [[10, 11], [12, 13]]
    assert all(one.launched and one.rollout_mode is RolloutMode.HYBRID for one in found)


def test_a_rank_sends_to_the_engine_of_the_model_on_its_own_gpu(monkeypatch):
    told: list[int] = []

    def start(self, *_: Any, config: Any, replica_rank: int, **__: Any) -> None:
        self.zmq_handle = f"ipc:///tmp/replica-{replica_rank}.sock"
        told.append(replica_rank)

    monkeypatch.setattr(ServerAdapter, "__init__", start)
    monkeypatch.setattr(weight_transfer, "own_socket", lambda name: name)
    monkeypatch.setenv("WORLD_SIZE", "4")
    whole = config().actor_rollout_ref
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        for policy in PATHS:
            OwnSocketAdapter(config=part_of(whole, policy).rollout, model_config=None, device_mesh=None)
    # Of the first model verl itself finds it (-1); the engines of the second are 2 and 3.
    assert told == [-1, 2, -1, 2, -1, 3, -1, 3]
    told.clear()
    OwnSocketAdapter(config=part_of(whole, "solver").rollout, model_config=None, replica_rank=5)
    assert told == [5], "who is told its engine has it"


class Manager:
    """Stands for `GroupServerManager`; the engines of one model."""

    made: list[Manager] = []  # noqa: RUF012

    @classmethod
    def create(cls, part: Any, worker_group: Any, start_rank: int) -> Manager:
        one = cls()
        one.part, one.start_rank = part, start_rank
        one.awake = [other for other in cls.made if not other.replicas[0].slept]
        one.replicas = [Replica(start_rank + place, 2) for place in range(worker_group.world_size // 2)]
        cls.made.append(one)
        return one

    def get_replicas(self) -> list[Replica]:
        return self.replicas

    def get_client(self) -> str:
        return f"client {self.start_rank}"


def test_models_are_started_one_by_one_each_with_its_part_of_the_memory(monkeypatch):
    monkeypatch.setattr(rollout_pool, "GroupServerManager", Manager)
    monkeypatch.setattr(Manager, "made", [])
    group = SimpleNamespace(world_size=4)
    whole = config()
    found = ModelServerManager.create(config=whole, worker_group=group, rollout_resource_pool="pool")
    parts = [one.part.actor_rollout_ref for one in Manager.made]
    assert [part.model.path for part in parts] == list(PATHS.values())
    assert [part.rollout.gpu_memory_utilization for part in parts] == [0.4, 0.4]
    assert [one.awake for one in Manager.made] == [[], []], "the one before sleeps when the next starts"
    assert [one.replica_rank for one in found.get_replicas()] == [0, 1, 2, 3]
    assert found.get_client().clients == {"planner": "client 0", "solver": "client 2"}
    assert whole == config(), "the run's own configuration stays"


def test_the_server_manager_is_that_of_several_models_while_workers_start():
    with engines_placed(config()):
        assert ray_trainer.LLMServerManager is ModelServerManager
    one = config()
    one.actor_rollout_ref.rollout.custom.models = {"solver": "/models/b"}
    with engines_placed(one):
        assert ray_trainer.LLMServerManager is rollout_pool.GroupServerManager
