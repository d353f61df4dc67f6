"""verl's hybrid worker with a process group that also works on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.verl_adapter import checkpoint
from marsrl_verl.verl_adapter.micro_batches import use_fast_partitions
from marsrl_verl.verl_adapter.platform_choice import on_cpu_platform


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
        super().__init__(config)


class MarsRLActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's hybrid actor, rollout and reference worker built from `MarsRLTrainingWorker`s."""

    actor_worker_cls = MarsRLTrainingWorker
    ref_worker_cls = MarsRLTrainingWorker

    def __init__(self, config: DictConfig, role: str, **kwargs: Any) -> None:
        super().__init__(config, role, **kwargs)
        if own_pool_gpus(config.rollout) > 0:
            # Upstream behaviour: `init_model` of the hybrid role prepares an engine of this process, and
            # asks that the trainer's ranks are a multiple of the engine's.
            self.role = role.replace("_rollout", "")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe_shards(self, folder: str) -> dict[str, checkpoint.Facts]:
        """Size and checksum of the files that this rank wrote into a checkpoint's folder."""
        return checkpoint.describe_shards(Path(folder), self.rank)
