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

from marsrl_verl.config.adapters import adapters
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.verl_adapter.checkpoint import resumed_optimizer
from marsrl_verl.verl_adapter.checkpoint import sealed as checkpoint
from marsrl_verl.verl_adapter.engine.adapter_engine import AdapterFiles, AdapterFSDPEngine
from marsrl_verl.verl_adapter.engine.batch import POLICY, ROW_ID
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
            from marsrl_verl.verl_adapter.cpu.ranks import (
                initialize_gloo,
                keep_reference_in_place,
                use_whole_batch_log_probs,
            )

            initialize_gloo()
            use_whole_batch_log_probs()
            keep_reference_in_place()
        register_engine()
        use_fast_micro_batches()
        checkpoint.without_lock_files()
        super().__init__(config)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(
        self, local_path: str, hdfs_path: str | None = None, del_local_after_load: bool = False
    ) -> None:
        """As upstream; then the configuration's learning rate, betas and weight decay apply again."""
        optimizers = self.engine.optimizers()
        settings = [resumed_optimizer.configured(*one) for one in optimizers]
        super().load_checkpoint(local_path, hdfs_path, del_local_after_load)
        for one, its_settings in zip(optimizers, settings, strict=True):
            resumed_optimizer.apply(its_settings, *one)


class MarsRLActorRolloutRefWorker(ActorRolloutRefWorker):
    """verl's hybrid actor, rollout and reference worker built from `MarsRLTrainingWorker`s.

    Upstream behaviour: each call brings all of its rows with every column that verl reads, padded, and
    outputs go back with a value for each token of the prompt too.
    """

    actor_worker_cls = MarsRLTrainingWorker
    ref_worker_cls = MarsRLTrainingWorker

    def __init__(self, config: DictConfig, role: str, **kwargs: Any) -> None:
        use_own_sockets()
        super().__init__(config, role, **kwargs)
        self._held = HeldRows()
        if own_pool_gpus(config.rollout) > 0:
            # Upstream behaviour: `init_model` of the hybrid role prepares an engine of this process, and
            # asks that the trainer's ranks are a multiple of the engine's.
            self.role = role.replace("_rollout", "")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """As upstream, with an adapter for each policy that has one, and a loss that counts rows over all
        ranks, and is the method's."""
        AdapterFSDPEngine.adapters = adapters(self.config.rollout)
        super().init_model()
        if self.actor is not None:
            self.actor.set_loss_fn(functools.partial(update_loss, self.actor.loss_fn))

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def hold_rows(self, data: TensorDict) -> TensorDict:
        """Keep a step's rows until its update; the other calls name them by `row_id`. Returns their ids."""
        ids = data.select(ROW_ID)  # before columns are added to it
        self._held.hold(data)
        return ids

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict | None:
        """As upstream, of rows that are held or come with the call; response tokens alone."""
        rows = self._held.complete(data)
        self._select(data)
        output = super().compute_log_prob(rows)
        return None if output is None else responses_only(output, rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """As upstream, of rows that come with the call; response tokens alone."""
        rows = with_token_columns(data)
        output = super().compute_ref_log_prob(rows)
        return None if output is None else responses_only(output, rows)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict | None:
        """As upstream, of the rows that are held, which are let go of."""
        rows = self._held.complete(data)
        self._held.release(data)
        self._select(data)
        return super().update_actor(rows)

    def _select(self, data: TensorDict) -> None:
        """Compute with the weights of the policy whose rows these are."""
        if self.actor is not None:
            self.actor.engine.select_adapter(str(tu.get(data, POLICY)))

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
