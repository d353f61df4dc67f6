"""Where the engines run, on the trainer's GPUs or on their own, and how requests are spread over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo import ray_trainer
from verl.workers.rollout.llm_server import LLMServerManager

from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.verl_adapter.rollout_server.router import GroupLoadBalancer


class GroupServerManager(LLMServerManager):
    """verl's server manager with the router of groups, unless the configuration asks for another."""

    def __init__(self, config: DictConfig, *args: Any, **kwargs: Any) -> None:
        rollout = config.actor_rollout_ref.rollout
        if not (rollout.get("router_config_path") or rollout.get("full_determinism")):
            kwargs.setdefault("load_balancer_cls", GroupLoadBalancer)
        super().__init__(config, *args, **kwargs)


class OwnPoolServerManager(GroupServerManager):
    """As above, and it gives every engine a resource pool, whatever workers train."""

    def __init__(self, config: DictConfig, worker_group: Any = None, **kwargs: Any) -> None:
        kwargs.pop("rollout_resource_pool", None)
        super().__init__(config, **kwargs)


@contextmanager
def engines_placed(config: DictConfig) -> Iterator[None]:
    """Have verl's `init_workers` start the engines where the configuration wants them, with our router.

    Upstream behaviour: `RayPPOTrainer.init_workers` hands the trainer's workers to `LLMServerManager`, which
    then puts the engines into their processes and takes verl's router; the name is replaced while it runs,
    since the rest of that method is what this trainer needs.
    """
    apart = own_pool_gpus(config.actor_rollout_ref.rollout) > 0
    original = ray_trainer.LLMServerManager
    ray_trainer.LLMServerManager = OwnPoolServerManager if apart else GroupServerManager
    try:
        yield
    finally:
        ray_trainer.LLMServerManager = original
