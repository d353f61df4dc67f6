"""Where the engines run, on the trainer's GPUs or on their own, and how requests are spread over them.

Several models have engines of their own, all on the trainer's GPUs, with equal parts of the engine's memory.
One engine can't hold two models, and to bring in the weights of one in the place of the other's would end all
requests that are on their way, while programs and pipelined rounds ask several policies at a time.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, open_dict
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
        """verl's client; where there is one engine, one that asks no router."""
        servers = list(zip(self.server_addresses, self.server_handles, strict=True))
        if client_cls is None and self._load_balancer_cls is GroupLoadBalancer and len(servers) == 1:
            client_cls, kwargs["server"] = OneServerClient, servers[0]
        return super().get_client(client_cls, **kwargs)


class OwnPoolServerManager(GroupServerManager):
    """As above, and it gives every engine a resource pool, whatever workers train."""

    def __init__(self, config: DictConfig, worker_group: Any = None, **kwargs: Any) -> None:
        kwargs.pop("rollout_resource_pool", None)
        super().__init__(config, **kwargs)


@dataclass(frozen=True, slots=True)
class ModelServerManager:
    """A `GroupServerManager` for each of several models, by policy."""

    managers: dict[str, GroupServerManager]

    @classmethod
    def create(cls, config: DictConfig, worker_group: Any, **_: Any) -> ModelServerManager:
        """Start all engines, model by model: each sees how much of a GPU's memory is free, and what an engine
        that starts beside it takes and gives back meanwhile would mislead it. Those that are there sleep."""
        ranks, managers = engine_ranks(config.actor_rollout_ref.rollout), {}
        for number, policy in enumerate(models(config.actor_rollout_ref.rollout)):
            part = copy.deepcopy(config)
            with open_dict(part):
                part.actor_rollout_ref = part_of(config.actor_rollout_ref, policy)
            first = first_replica(number, worker_group.world_size, ranks)
            managers[policy] = GroupServerManager.create(part, worker_group=worker_group, start_rank=first)
            _sleep(managers[policy].get_replicas())
        return cls(managers)

    def get_replicas(self) -> list[Any]:
        """The engines of all models."""
        return [replica for manager in self.managers.values() for replica in manager.get_replicas()]

    def get_client(self) -> PolicyClients:
        """What reaches the engines of each."""
        return PolicyClients({policy: manager.get_client() for policy, manager in self.managers.items()})


@auto_await
async def _sleep(replicas: Sequence[Any]) -> None:
    await asyncio.gather(*[replica.sleep() for replica in replicas])


@contextmanager
def engines_placed(config: DictConfig) -> Iterator[None]:
    """Have verl's `init_workers` start the engines where the configuration wants them, with our router.
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
