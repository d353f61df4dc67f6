"""verl's hybrid worker with a process group that also works on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.verl_adapter import checkpoint, resumed_optimizer
from marsrl_verl.verl_adapter.micro_batches import use_fast_partitions
from marsrl_verl.verl_adapter.platform_choice import on_cpu_platform
from marsrl_verl.verl_adapter.weight_sockets import use_own_sockets


class MarsRLTrainingWorker(TrainingWorker):
    """verl's training worker; on the CPU platform it creates the gloo group that verl cannot."""

    def __init__(self, config: Any) -> None:
        if on_cpu_platform():
            from marsrl_verl.verl_adapter.cpu import fsdp_engine  # noqa: F401  (registers itself)
            from marsrl_verl.verl_adapter.cpu.log_probs import use_whole_batch_log_probs
            from marsrl_verl.verl_adapter.cpu.process_group import initialize_gloo

            initialize_gloo()
            use_whole_batch_log_probs()
        else:
            from marsrl_verl.verl_adapter.fci_engine import register_on_cuda

            register_on_cuda()
        use_fast_partitions()
        checkpoint.without_lock_files()
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """As upstream; then the configuration's learning rate, betas and weight decay apply again."""
        engine = self.engine
        settings = resumed_optimizer.configured(engine.optimizer, engine.lr_scheduler)
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        resumed_optimizer.apply(settings, engine.optimizer, engine.lr_scheduler)


class MarsRLActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's hybrid actor, rollout and reference worker built from `MarsRLTrainingWorker`s."""

    actor_worker_cls = MarsRLTrainingWorker
    ref_worker_cls = MarsRLTrainingWorker

    def __init__(self, config: DictConfig, role: str, **kwargs: Any) -> None:
        use_own_sockets()
        super().__init__(config, role, **kwargs)
        if own_pool_gpus(config.rollout) > 0:
            # Upstream behaviour: `init_model` of the hybrid role prepares an engine of this process, and
            # asks that the trainer's ranks are a multiple of the engine's.
            self.role = role.replace("_rollout", "")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe_shards(self, folder: str) -> dict[str, checkpoint.Facts]:
        """Size and checksum of the files that this rank wrote into a checkpoint's folder."""
        return checkpoint.describe_shards(Path(folder), self.rank)
