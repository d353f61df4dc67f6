"""Builds what the trainer needs, in the order verl's own task runner does."""

from __future__ import annotations

import logging
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo_v0 import BaseTaskRunner
from verl.trainer.ppo.ray_trainer import Role
from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler, need_critic, need_reference_policy
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.config import HFModelConfig

from marsrl_verl.config.cluster_resources import trainer_cpus
from marsrl_verl.verl_adapter.engine.workers import MarsRLActorRolloutRefWorker
from marsrl_verl.verl_adapter.rollout_server.server import register_replica
from marsrl_verl.verl_adapter.run.worker_group import worker_group
from marsrl_verl.verl_adapter.trainer.overlong_prompts import filter_overlong_prompts
from marsrl_verl.verl_adapter.trainer.trainer import RayMarsRLTrainer

_log = logging.getLogger(__name__)


class MarsRLTaskRunner(BaseTaskRunner):
    """verl's task runner with our worker, our vLLM replica and our trainer."""

    def add_actor_rollout_worker(self, config: DictConfig) -> tuple[type, type]:
        """Registers the hybrid worker. verl hard-codes its class here, hence the override."""
        lora = config.actor_rollout_ref.model.get("lora_rank", 0) > 0
        role = Role.ActorRolloutRef if need_reference_policy(config) and not lora else Role.ActorRollout
        self.role_worker_mapping[role] = ray.remote(MarsRLActorRolloutRefWorker)
        self.mapping[role] = "global_pool"
        return MarsRLActorRolloutRefWorker, worker_group(config.marsrl.run.training_timeout_s)

    def init_resource_pool_mgr(self, config: DictConfig) -> Any:
        """verl's, with fewer CPUs where one process a rank is all that works: Ray waits in silence for CPUs
        that a small machine does not have."""
        manager = super().init_resource_pool_mgr(config)
        manager.max_colocate_count = trainer_cpus(config)
        return manager

    def run(self, config: DictConfig) -> None:
        """Trains as `config` says; returns when the last step is done."""
        trainer = self.build_trainer(config)
        try:
            trainer.init_workers()
            trainer.fit()
        except BaseException:
            # Some may wait for ever, and threads of this process for them. The others end with this process:
            # a Ray of our own does, and one that was joined ends what a driver that is gone had started.
            trainer.kill_workers()
            try:
                trainer.close()
            except Exception:  # the run ends for the reason that it has
                _log.exception("the run's files could not be closed")
            raise
        trainer.close()

    def build_trainer(self, config: DictConfig) -> RayMarsRLTrainer:
        """Everything up to the trainer object; starts no worker."""
        OmegaConf.resolve(config)
        _, worker_group_cls = self.add_actor_rollout_worker(config)
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        register_replica()
        model_config: HFModelConfig = omega_conf_to_dataclass(config.actor_rollout_ref.model)
        tokenizer, processor = model_config.tokenizer, model_config.processor
        datasets = {split: self._dataset(config, split, tokenizer, processor) for split in ("train", "val")}
        return RayMarsRLTrainer(
            config=config,
            tokenizer=tokenizer,
            processor=processor,
            role_worker_mapping=self.role_worker_mapping,
            resource_pool_manager=self.init_resource_pool_mgr(config),
            ray_worker_group_cls=worker_group_cls,
            train_dataset=datasets["train"],
            val_dataset=datasets["val"],
            collate_fn=collate_fn,
            train_sampler=create_rl_sampler(config.data, datasets["train"]),
        )

    @staticmethod
    def _dataset(config: DictConfig, split: str, tokenizer: Any, processor: Any) -> Any:
        files, limit = config.data[f"{split}_files"], config.data.get(f"{split}_max_samples", -1)
        data = config.data.copy()  # verl's dataset writes into it
        OmegaConf.set_struct(data, False)
        # Upstream behaviour: it measures the dataset's own chat against the longest prompt of any role.
        data.filter_overlong_prompts = False
        dataset = create_rl_dataset(
            files, data, tokenizer, processor, is_train=split == "train", max_samples=limit
        )
        if config.data.filter_overlong_prompts:
            filter_overlong_prompts(dataset, config, tokenizer, split)
        return dataset
