"""A method's system without a trainer: engines on all GPUs of the run, rollout and reward workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.experimental.reward_loop import RewardLoopManager

from marsrl_verl.config.checks.context import typed_settings
from marsrl_verl.config.models import adapters, models
from marsrl_verl.core.policy import SHARED
from marsrl_verl.reporting.progress import RoundState
from marsrl_verl.verl_adapter.checkpoint.trained_weights import checkpoint_step, merge_models, read_adapters
from marsrl_verl.verl_adapter.rollout_server.engine_watch import EngineWatch
from marsrl_verl.verl_adapter.rollout_server.rollout_manager import MarsRLAgentLoopManager
from marsrl_verl.verl_adapter.rollout_server.rollout_pool import (
    GroupServerManager,
    ModelServerManager,
    give_adapter,
    start_engines,
)
from marsrl_verl.verl_adapter.rollout_server.server import register_replica


class System:
    """Engines and workers that answer the roles of a method; nothing trains.

    Args:
        config: of a run with `trainer.val_only`; `trainer.resume_from_path` names a checkpoint, else the
            models answer as they begin.
        weights: the folder in which a checkpoint's shards are merged.
        say: shows lines to the user.
        show_round: shows how far the requests are.
    """

    _servers: GroupServerManager | ModelServerManager | None = None
    watch: EngineWatch
    manager: MarsRLAgentLoopManager

    def __init__(
        self,
        config: DictConfig,
        weights: Path,
        say: Callable[[Iterable[str]], None],
        show_round: Callable[[RoundState], None] = lambda state: None,
    ) -> None:
        OmegaConf.resolve(config)
        register_replica()
        self.config, self.settings = config, typed_settings(config)
        self._weights, self._say, self._started = weights, say, False
        self._show_round = show_round
        self._adapted: dict[str, dict[str, bytes]] = {}
        trainer = config.trainer
        named = trainer.resume_mode == "resume_path"
        self.checkpoint = Path(trainer.resume_from_path) if named else None
        self.step = 0 if self.checkpoint is None else checkpoint_step(self.checkpoint)

    def start(self) -> MarsRLAgentLoopManager:
        """Starts everything, engines where a role is played by none of other models; returns what answers
        requests."""
        if self.settings.starts_engines:
            self._adapted = self._choose_weights()
            self._servers = start_engines(self.config)
        self._watch_engines()
        self._give_adapters()
        rewards = RewardLoopManager(config=self.config, rm_resource_pool=None)
        self._reward_workers = rewards.reward_loop_workers
        return self._start_workers()

    @property
    def _replicas(self) -> list[Any]:
        return [] if self._servers is None else self._servers.get_replicas()

    def _watch_engines(self) -> None:
        servers = [one.server_handle for one in self._replicas]
        self.watch = EngineWatch(servers, self.settings.run.engine_timeout_s)
        self._started = True

    def _give_adapters(self) -> None:
        for policy, files in self._adapted.items():
            give_adapter(self._replicas, policy, files, self.step)

    def _start_workers(self) -> MarsRLAgentLoopManager:
        self.manager = MarsRLAgentLoopManager.create(
            config=self.config,
            llm_client=None if self._servers is None else self._servers.get_client(),
            reward_loop_worker_handles=self._reward_workers,
        )
        self.manager.watch(self.watch, self.settings.run.progress_timeout_s, self._show_round)
        return self.manager

    def restart(self) -> MarsRLAgentLoopManager:
        """Starts engines anew that have died or hang, and all rollout workers; what these were at is lost.
        The reward workers stay."""
        for worker in self.manager.agent_loop_workers:
            ray.kill(worker)
        if self._servers is not None:
            self._servers.restart_dead(self.settings.run.engine_timeout_s)
        self._watch_engines()
        self._give_adapters()
        return self._start_workers()

    def _choose_weights(self) -> dict[str, dict[str, bytes]]:
        """Has engines load what answers; returns the files of adapters by policy."""
        node, checkpoint = self.config.actor_rollout_ref, self.checkpoint
        own_adapters, own_models = adapters(node.rollout), models(node.rollout)
        with open_dict(self.config):
            node.rollout.load_format, node.rollout.free_cache_engine = "auto", False
            # verl wants to know of an engine's own nodes where no worker trains.
            node.rollout.nnodes = self.config.trainer.nnodes
            node.rollout.n_gpus_per_node = self.config.trainer.n_gpus_per_node
            if checkpoint is None:
                if own_adapters:  # they begin as no change of the model
                    node.model.lora_rank = 0
                    node.rollout.custom.adapters, node.rollout.custom.unadapted = [], list(own_adapters)
                return {}
            if own_adapters:
                return read_adapters(checkpoint, own_adapters)
            begun = time.monotonic()
            merged = merge_models(
                checkpoint,
                self._weights,
                tuple(own_models) or (SHARED,),
                str(node.rollout.dtype),
                trust_remote_code=bool(node.model.get("trust_remote_code")),
            )
            self._say([f"weights of {checkpoint} merged in {time.monotonic() - begun:.0f} s"])
            node.model.tokenizer_path = node.model.get("tokenizer_path") or node.model.path
            node.model.hf_config_path = None
            node.model.path = str(next(iter(merged.values())))
            node.rollout.custom.models = {name: str(merged[name]) for name in own_models}
        return {}

    def close(self) -> None:
        """Ends the engines, also after an error."""
        if self._started:
            self.watch.kill()
