"""verl's hybrid worker: rows are sent once, losses count rows of all ranks, and CPUs have a process group."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from marsrl_verl.config.models import adapters, learning_rates, models, part_of, several_models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.verl_adapter.checkpoint import files as checkpoint
from marsrl_verl.verl_adapter.checkpoint.resumed_optimizer import as_configured
from marsrl_verl.verl_adapter.engine.adapter_engine import AdapterFiles, AdapterFSDPEngine
from marsrl_verl.verl_adapter.engine.batch import POLICY, ROW_ID
from marsrl_verl.verl_adapter.engine.fused_head import use_whole_batch_log_probs
from marsrl_verl.verl_adapter.engine.micro_batches import use_fast_micro_batches
from marsrl_verl.verl_adapter.engine.policy_loss import update_loss
from marsrl_verl.verl_adapter.engine.probe_engine import register_engine
from marsrl_verl.verl_adapter.engine.rank_rows import HeldRows, responses_only, with_token_columns
from marsrl_verl.verl_adapter.platform_choice import on_cpu_platform
from marsrl_verl.verl_adapter.rollout_server.weight_sockets import use_own_sockets


class MarsRLTrainingWorker(TrainingWorker):
    """verl's training worker; on the CPU platform it creates the gloo group that verl cannot."""

    def __init__(self, config: Any) -> None:
        if on_cpu_platform():
            from marsrl_verl.verl_adapter.cpu import ranks

            ranks.initialize_gloo()
            ranks.offload_without_pinned_memory()
        use_whole_batch_log_probs()
        register_engine()
        use_fast_micro_batches()
        checkpoint.without_lock_files()
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """Loads as upstream; then the configuration's learning rate, betas and weight decay apply again."""
        with as_configured(self.engine.optimizers()):
            super().load_checkpoint(local_path, hdfs_path, del_local_after_load)


class ModelWorker(ActorRolloutRefWorker):
    """verl's hybrid worker of `MarsRLTrainingWorker`s, with a loss that counts rows over all ranks."""

    actor_worker_cls = MarsRLTrainingWorker
    ref_worker_cls = MarsRLTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Initializes as upstream, with the method's loss."""
        super().init_model()
        if self.actor is not None:
            self.actor.set_loss_fn(functools.partial(update_loss, self.actor.loss_fn))


class MarsRLActorRolloutRefWorker(ModelWorker):
    """The worker of a rank, with the models of all policies: an adapter for each on one, or several.

    Several models are as many of verl's workers in this process, each with its optimizer, its schedule and,
    unless another begins as the same model, its reference. The parts of a model that verl offloads wait in
    main memory until its next call, so that one model at a time is on the GPU.

    Upstream behaviour: each call brings all of its rows with every column that verl reads, padded, and
    outputs go back with a value for each token of the prompt too.
    """

    def __init__(self, config: DictConfig, role: str, **kwargs: Any) -> None:
        use_own_sockets()
        paths = models(config.rollout) if several_models(config.rollout) else {}
        parts = {policy: part_of(config, policy) for policy in paths}
        super().__init__(next(iter(parts.values()), config), role, **kwargs)
        self._held = HeldRows()
        self._models: dict[str, ModelWorker] = {}
        """Workers by policy, where there are several models; this worker is the first."""
        self._references: dict[str, ModelWorker] = {}
        """By policy, the worker whose reference model is the one that it began as."""
        begun: dict[str, ModelWorker] = {}
        for policy, part in parts.items():
            path, worker = paths[policy], self
            if self._models:
                without = role.replace("_ref", "") if path in begun else role
                worker = ModelWorker(part, without, **kwargs)
            self._models[policy] = worker
            self._references[policy] = begun.setdefault(path, worker)
        if own_pool_gpus(config.rollout) > 0:
            # Upstream behaviour: `init_model` of the hybrid role prepares an engine of this process, and
            # asks that the trainer's ranks are a multiple of the engine's.
            self.role = role.replace("_rollout", "")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Initializes as upstream, with an adapter or a model for each policy that has one."""
        AdapterFSDPEngine.adapters = adapters(self.config.rollout)
        AdapterFSDPEngine.learning_rates = learning_rates(self.config.rollout)
        super().init_model()
        for worker in list(self._models.values())[1:]:
            worker.init_model()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def hold_rows(self, data: TensorDict) -> TensorDict:
        """Keeps a step's rows until its update; the other calls name them by `row_id`. Returns their ids."""
        ids = data.select(ROW_ID)  # before columns are added to it
        self._held.hold(data)
        return ids

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Computes as upstream, for rows that are held or come with the call; response tokens alone."""
        rows = self._held.complete(data)
        output = ActorRolloutRefWorker.compute_log_prob(self._selected(data), rows)
        return None if output is None else responses_only(output, rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Computes as upstream, for rows that come with the call; response tokens alone."""
        rows = with_token_columns(data)
        worker = self._one_of(self._references, str(tu.get(data, POLICY)))
        output = ActorRolloutRefWorker.compute_ref_log_prob(worker, rows)
        return None if output is None else responses_only(output, rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """Updates as upstream, with the held rows, which are released."""
        rows = self._held.complete(data)
        self._held.release(data)
        return ActorRolloutRefWorker.update_actor(self._selected(data), rows)

    def _selected(self, data: TensorDict) -> ModelWorker:
        """The worker whose model has the weights of these rows' policy, ready to compute with them."""
        policy = str(tu.get(data, POLICY))
        worker = self._one_of(self._models, policy)
        if worker.actor is not None:
            worker.actor.engine.select_adapter(policy)
        return worker

    def _one_of(self, workers: dict[str, ModelWorker], policy: str) -> ModelWorker:
        if not workers:
            return self  # all weights are one policy's, or adapters' on one model
        if policy not in workers:
            raise ValueError(f"policy {policy!r} has no model here, those that do: {', '.join(workers)}")
        return workers[policy]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(
        self, global_steps: int | None = None, mode: str = "auto", policy: str | None = None
    ) -> Any:
        """Sends weights as upstream; those of one of several models go to its policy's own engines."""
        worker = self if policy is None else self._one_of(self._models, policy)
        return await ActorRolloutRefWorker.update_weights(worker, global_steps, mode)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Saves as upstream; each of several models in a folder of its policy's name."""
        for folder, worker in self._places(local_path):
            ActorRolloutRefWorker.save_checkpoint(worker, folder, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Loads as upstream, from the folders that `save_checkpoint` writes."""
        for folder, worker in self._places(local_path):
            ActorRolloutRefWorker.load_checkpoint(worker, folder, *args, **kwargs)

    def _places(self, local_path: str) -> list[tuple[str, ModelWorker]]:
        """The folder of each model in that of a checkpoint."""
        several = [(str(Path(local_path) / policy), worker) for policy, worker in self._models.items()]
        return several or [(local_path, self)]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export_adapter(self, policy: str) -> AdapterFiles | None:
        """An adapter as files of a PEFT folder, from rank 0."""
        if self.actor is None:
            raise RuntimeError(f"policy {policy!r}: this worker trains nothing")
        files: AdapterFiles | None = self.actor.engine.export_adapter(policy)
        return files

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe_shards(self, folder: str) -> dict[str, checkpoint.Facts]:
        """Size and checksum of the files that this rank wrote into a checkpoint's folder."""
        return checkpoint.describe_shards(Path(folder), self.rank)
