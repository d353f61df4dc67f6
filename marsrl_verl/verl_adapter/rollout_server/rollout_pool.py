"""Placement of the engines, on the trainer's GPUs or on their own, and the spread of requests over them.

Several models have engines of their own, all on the trainer's GPUs, with equal parts of the engine's memory.
One engine can't hold two models, and replacing the weights of one by the other's would end all requests that
are on their way, while workflows and pipelined rounds call several policies at a time.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from omegaconf import DictConfig, open_dict
from ray.exceptions import RayError
from verl.single_controller.ray.base import ResourcePoolManager, split_resource_pool
from verl.trainer.ppo import ray_trainer
from verl.utils.ray_utils import auto_await
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from marsrl_verl.config.models import engine_ranks, first_replica, models, part_of, several_models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.verl_adapter.rollout_server.client import PolicyClients
from marsrl_verl.verl_adapter.rollout_server.router import GroupLoadBalancer, OneServerClient


class GroupServerManager(LLMServerManager):
    """verl's server manager with the router of groups, unless the configuration asks for another."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        rollout = config.actor_rollout_ref.rollout
        if not (rollout.get("router_config_path") or rollout.get("full_determinism")):
            kwargs.setdefault("load_balancer_cls", GroupLoadBalancer)
        super().__init__(config, *args, **kwargs)

    def get_client(self, client_cls: type[LLMServerClient] | None = None, **kwargs: Any) -> LLMServerClient:
        """verl's client; where there is one engine, one without a router."""
        servers = list(zip(self.server_addresses, self.server_handles, strict=True))
        if client_cls is None and self._load_balancer_cls is GroupLoadBalancer and len(servers) == 1:
            client_cls, kwargs["server"] = OneServerClient, servers[0]
        return super().get_client(client_cls, **kwargs)

    @auto_await
    async def restart_dead(self, limit_s: float) -> None:
        """Restarts in their places the engines that have died or show no sign of life within `limit_s`. The
        router and clients from before refer to the old ones."""
        lives = await asyncio.gather(*[_lives(one, limit_s) for one in self.rollout_replicas])
        dead = [one for one, alive in zip(self.rollout_replicas, lives, strict=True) if not alive]
        for replica in dead:
            for server in replica.servers:
                ray.kill(server)
            # Names of their own: Ray frees that of an actor some time after it has ended.
            replica.servers, replica.name_suffix = [], f"_{uuid.uuid4().hex[:8]}"
        await asyncio.gather(*[replica.launch_servers() for replica in dead])
        self.server_handles = [one.server_handle for one in self.rollout_replicas]
        self.server_addresses = [one.server_address for one in self.rollout_replicas]
        ray.kill(self.global_load_balancer)
        await self._init_global_load_balancer()


async def _lives(replica: Any, limit_s: float) -> bool:
    try:
        await asyncio.wait_for(replica.server_handle.pulse.remote(through_core=True), limit_s)
    except (RayError, asyncio.TimeoutError):
        return False
    return True


class OwnPoolServerManager(GroupServerManager):
    """A `GroupServerManager` that gives every engine a resource pool, whatever workers train."""

    def __init__(self, config: DictConfig, worker_group: Any = None, **kwargs: Any) -> None:
        kwargs.pop("rollout_resource_pool", None)
        super().__init__(config, **kwargs)


class EnginePoolServerManager(GroupServerManager):
    """Spreads its engines over a resource pool in which no worker trains; those of other models may be there.

    Upstream behaviour: without workers that train, verl gives each engine a pool of its own, so that two
    engines never share a GPU.
    """

    def __init__(self, config: DictConfig, worker_group: Any = None, *, pool: Any, **kwargs: Any) -> None:
        super().__init__(config, worker_group, **kwargs)
        self._pool = pool

    async def _initialize_llm_servers(self, start_rank: int | None = None) -> None:
        first = self.start_rank if start_rank is None else start_rank
        places = split_resource_pool(self._pool, engine_ranks(self.rollout_config))
        self.rollout_replicas = [
            self.rollout_replica_class(
                replica_rank=first + number,
                config=self.rollout_config,
                model_config=self.model_config,
                gpus_per_node=self.config.trainer.n_gpus_per_node,
            )
            for number in range(len(places))
        ]
        pairs = zip(self.rollout_replicas, places, strict=True)
        await asyncio.gather(*[replica.init_colocated(place) for replica, place in pairs])
        self.server_handles = [replica.server_handle for replica in self.rollout_replicas]
        self.server_addresses = [replica.server_address for replica in self.rollout_replicas]


@dataclass(frozen=True, slots=True)
class ModelServerManager:
    """A `GroupServerManager` for each of several models, by policy."""

    managers: dict[str, GroupServerManager]

    @classmethod
    def create(cls, config: DictConfig, worker_group: Any, **_: Any) -> ModelServerManager:
        """Starts all engines on the GPUs of workers that train; see `start`."""
        return cls.start(config, worker_group.world_size, GroupServerManager, worker_group=worker_group)

    @classmethod
    def start(
        cls, config: DictConfig, gpus: int, manager: type[GroupServerManager], **place: Any
    ) -> ModelServerManager:
        """Starts all engines, model by model: each measures the free memory of a GPU, which an engine that
        starts beside it would take and give back meanwhile. Those that have started sleep."""
        ranks, managers = engine_ranks(config.actor_rollout_ref.rollout), {}
        for number, policy in enumerate(models(config.actor_rollout_ref.rollout)):
            part = copy.deepcopy(config)
            with open_dict(part):
                part.actor_rollout_ref = part_of(config.actor_rollout_ref, policy)
            first = first_replica(number, gpus, ranks)
            managers[policy] = manager.create(part, start_rank=first, **place)
            _sleep(managers[policy].get_replicas())
        return cls(managers)

    def get_replicas(self) -> list[Any]:
        """The engines of all models."""
        return [replica for manager in self.managers.values() for replica in manager.get_replicas()]

    def get_client(self) -> PolicyClients:
        """Clients that reach the engines of each policy."""
        return PolicyClients({policy: manager.get_client() for policy, manager in self.managers.items()})

    def restart_dead(self, limit_s: float) -> None:
        """See `GroupServerManager.restart_dead`."""
        for manager in self.managers.values():
            manager.restart_dead(limit_s)


@auto_await
async def _sleep(replicas: Sequence[Any]) -> None:
    await asyncio.gather(*[replica.sleep() for replica in replicas])


def start_engines(config: DictConfig) -> GroupServerManager | ModelServerManager:
    """Engines on all GPUs of the run, which trains nothing; they load their weights from their models'
    folders and never sleep (`free_cache_engine` is false)."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    nodes, gpus = int(trainer.nnodes), int(trainer.n_gpus_per_node)
    count = max(1, len(models(rollout)))
    pool = ResourcePoolManager({"engines": [gpus] * nodes}, {}, max_colocate_count=count)
    pool.create_resource_pool()
    place = {"pool": pool.resource_pool_dict["engines"]}
    if several_models(rollout):
        return ModelServerManager.start(config, nodes * gpus, EnginePoolServerManager, **place)
    return EnginePoolServerManager.create(config, **place)


def give_adapter(replicas: Sequence[Any], policy: str, files: Mapping[str, bytes], version: int) -> None:
    """Has all engines answer for a policy with an adapter, whose PEFT folder has these files by name: they
    go through Ray's object store to every node of each engine."""
    sent = ray.put(dict(files))
    servers = [server for replica in replicas for server in replica.servers]
    ray.get([server.store_adapter.remote(policy, sent, version) for server in servers])
    ray.get([one.server_handle.use_adapter.remote(policy, version) for one in replicas])
    ray.get([server.drop_old_adapters.remote(policy, version) for server in servers])


@contextmanager
def engines_placed(config: DictConfig) -> Iterator[None]:
    """Has verl's `init_workers` start the engines where the configuration wants them, with our router.
    Upstream behaviour: `RayPPOTrainer.init_workers` hands the trainer's workers to `LLMServerManager`, which
    then puts the engines into their processes and takes verl's router; the name is replaced while it runs,
    since the rest of that method is what this trainer needs."""
    rollout = config.actor_rollout_ref.rollout
    original = ray_trainer.LLMServerManager
    if several_models(rollout):
        ray_trainer.LLMServerManager = ModelServerManager
    elif own_pool_gpus(rollout) > 0:
        ray_trainer.LLMServerManager = OwnPoolServerManager
    else:
        ray_trainer.LLMServerManager = GroupServerManager
    try:
        yield
    finally:
        ray_trainer.LLMServerManager = original
