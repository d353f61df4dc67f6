"""Engines on GPUs of their own, beside the trainer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig
from verl.trainer.ppo import ray_trainer
from verl.workers.rollout.llm_server import LLMServerManager

from marsrl_verl.config.pools import own_pool_gpus


class OwnPoolServerManager(LLMServerManager):
    """verl's server manager that gives every engine a resource pool, whatever workers train."""

    def __init__(self, config: DictConfig, worker_group: Any = None, **kwargs: Any) -> None:
        kwargs.pop("rollout_resource_pool", None)
        super().__init__(config, **kwargs)


@contextmanager
def engines_placed(config: DictConfig) -> Iterator[None]:
    """Have verl's `init_workers` start the engines where the configuration wants them.

    Upstream behaviour: `RayPPOTrainer.init_workers` hands the trainer's workers to `LLMServerManager`, which
    then puts the engines into their processes; the name is replaced while it runs, since the rest of that
    method is what this trainer needs.
    """
    if own_pool_gpus(config.actor_rollout_ref.rollout) == 0:
        yield
        return
    original = ray_trainer.LLMServerManager
    ray_trainer.LLMServerManager = OwnPoolServerManager
    try:
        yield
    finally:
        ray_trainer.LLMServerManager = original
