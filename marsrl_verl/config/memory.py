"""An estimate of the memory that one GPU needs, with the assumptions it makes.

It is arithmetic, not a measurement: it tells settings that cannot fit from those that may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config import hf_folder
from marsrl_verl.config.batching import world_size
from marsrl_verl.config.model_shapes import PUBLISHED, ModelShape, shape_from_config
from marsrl_verl.config.models import adapters, models, several_models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.config.training_memory import (
    ADAM_STATES,
    BYTES,
    CONTEXT_GIB,
    FUSED_CHUNK,
    GIB,
    NCCL_GIB,
    Numbers,
    TrainingMemory,
    adapter_parameters,
    micro_batch_tokens,
    shards,
    training_memory,
)
from marsrl_verl.settings.choices import Overlap

USABLE = 0.92
"""Part of a GPU that a plan may fill: the rest goes to the driver, to gaps between the blocks of PyTorch's
allocator and to what no arithmetic knows."""
GPU_GIB = 80
"""Memory of the GPUs that the cluster presets are written for (`marsrl.hardware.gpu_gib`)."""
_ENGINE_RESERVE_GIB = 2
"""Activations, graphs and buffers of the engine while it decodes."""
_ASLEEP_GIB = 1
"""Graphs and workspaces that a sleeping engine keeps."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes per GPU."""

    parameters: int
    update: TrainingMemory
    """The trainer's update; of several models the largest one, with the state of those that wait on the GPU
    beside it."""
    processes: int
    """Bytes that the processes of trainer and engines hold beside their tensors while the trainer works."""
    trainer_process: int
    """The trainer's part of it."""
    engine_weights: int
    engine_reserve: int
    """Bytes that the engines need beside weights and cache."""
    kv_cache: int
    kv_bytes_per_token: int
    """Bytes on one GPU; an engine of several GPUs spreads the heads. This and the next two fields are of the
    model whose engine holds the fewest sequences."""
    kv_tokens: int
    longest_sequences: float
    """Number of sequences of the greatest length that the cache of one engine holds at once."""
    trainer_offloaded: bool
    """Weights and optimizer wait in main memory while the engine decodes."""
    trainer_on_host: bool
    """Weights, gradients and optimizer stay in main memory, also while training (offload_policy)."""
    engine_sleeps: bool
    """The engine frees its memory while the trainer works."""
    engine_apart: bool
    """The engine has GPUs of its own."""
    overlap: bool
    """The engine decodes while the trainer works."""
    host_loading: int
    """Main memory of a node while the model is read for the trainer."""
    host_waiting: int
    """Main memory of a node for what of the trainer lies there: offloaded state, the reference policy."""

    @property
    def host(self) -> int:
        """Most bytes of a node's main memory, without Ray's objects and the driver's batch."""
        return max(self.host_loading, self.host_waiting)

    @property
    def training_parts(self) -> dict[str, int]:
        """Bytes by part at the fullest moment of an update."""
        away = self.engine_sleeps or self.engine_apart
        return {
            **self.update.parts(self.trainer_on_host),
            "the engine": 0 if away else self.engine,
            "processes": self.processes,
        }

    @property
    def training(self) -> int:
        """Most bytes while an update is computed."""
        return sum(self.training_parts.values())

    @property
    def engine(self) -> int:
        """Bytes of the engines while they decode."""
        return self.engine_weights + self.kv_cache + self.engine_reserve

    @property
    def trainer_waits(self) -> bool:
        """The training state moves to main memory while the engine decodes on the same GPUs."""
        return self.trainer_offloaded and not self.overlap and not self.engine_apart

    @property
    def decoding_parts(self) -> dict[str, int]:
        """Bytes by part while the engine decodes, on the engine's GPUs."""
        waits = self.trainer_waits or self.trainer_on_host or self.engine_apart
        return {
            "the training state": 0 if waits else self.update.weights + self.update.optimizer,
            "the engine": self.engine,
            "processes": 0 if self.engine_apart else self.trainer_process,
        }

    @property
    def decoding(self) -> int:
        """Most bytes while the engine decodes."""
        return sum(self.decoding_parts.values())

    def exceeds(self, gpu: int) -> bool:
        """True if a GPU of so many bytes is too small."""
        return max(self.training, self.decoding) > USABLE * gpu


def model_shapes(config: DictConfig) -> list[ModelShape]:
    """Sizes of the models that are trained, in the order of their policies; none where one is not known."""
    rollout, path = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.path
    paths = [str(one) for one in (models(rollout).values() if several_models(rollout) else [path])]
    found = [shape_from_config(hf_folder.known_config(one) or PUBLISHED.get(one, {})) for one in paths]
    known = [shape for shape in found if shape is not None]
    return known if len(known) == len(found) else []


def estimate_memory(config: DictConfig, *shapes: ModelShape) -> MemoryEstimate:
    """The estimate for a checked configuration and the models that are trained, in the order of
    `config.models.models`; with adapters it is one."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    fsdp, numbers = actor.fsdp_config, Numbers(config)
    gpus, apart = world_size(config), own_pool_gpus(rollout) > 0
    engines = [_engine(config, shape, len(shapes)) for shape in shapes]
    fewest = min(engines, key=lambda one: one.longest_sequences)
    ranks = min(gpus, int(config.trainer.n_gpus_per_node))
    own = adapter_parameters(config, shapes[0])
    held = [shape.parameters // shards(config) for shape in shapes]
    trained = [own // shards(config) if own else shard for shard in held]
    # An engine that is sent adapters alone keeps the model for when it wakes.
    asleep = sum(one.weights for one in engines) if own and rollout.free_cache_engine else 0
    waiting = [
        ranks * _host_bytes(fsdp, numbers.master, *counts) for counts in zip(held, trained, strict=True)
    ]
    on_cpu = str(config.trainer.device) == "cpu"
    trainer = 0 if on_cpu else _process(gpus > 1)
    asleep_too = bool(rollout.free_cache_engine) and not apart and not on_cpu
    sleeping = _process(int(rollout.tensor_model_parallel_size) > 1) + _ASLEEP_GIB * GIB
    estimate = MemoryEstimate(
        parameters=sum(shape.parameters for shape in shapes),
        update=_update(config, shapes),
        processes=trainer + (len(shapes) * sleeping if asleep_too else 0),
        trainer_process=trainer,
        engine_reserve=0 if on_cpu else len(shapes) * _ENGINE_RESERVE_GIB * GIB,
        engine_weights=sum(one.weights for one in engines),
        kv_cache=sum(one.kv_cache for one in engines),
        kv_bytes_per_token=fewest.kv_bytes_per_token,
        kv_tokens=fewest.kv_cache // fewest.kv_bytes_per_token,
        longest_sequences=fewest.longest_sequences,
        trainer_offloaded=bool(fsdp.param_offload and fsdp.optimizer_offload),
        trainer_on_host=bool(fsdp.offload_policy),
        engine_sleeps=bool(rollout.free_cache_engine),
        engine_apart=apart,
        overlap=config.marsrl.pipeline.overlap == Overlap.ONE_STEP.value,
        host_loading=max(
            sum(waiting[:place]) + shape.parameters * numbers.master * (ranks if shape.tied else 1)
            for place, shape in enumerate(shapes)
        ),
        host_waiting=sum(waiting) + ranks * (_reference_bytes(config, shapes, numbers.compute) + asleep),
    )
    return _of_engines_alone(estimate) if config.trainer.val_only else estimate


def _of_engines_alone(estimate: MemoryEstimate) -> MemoryEstimate:
    """The estimate without a trainer: an evaluation alone has engines only."""
    nothing = dict.fromkeys((one.name for one in fields(TrainingMemory)), 0)
    return replace(
        estimate,
        update=TrainingMemory(**nothing),
        processes=0,
        trainer_process=0,
        engine_sleeps=False,
        engine_apart=True,
        overlap=False,
        host_loading=0,
        host_waiting=0,
    )


@dataclass(frozen=True, slots=True)
class _Engine:
    """Bytes of one model's engine, per GPU."""

    weights: int
    kv_cache: int
    kv_bytes_per_token: int
    longest_sequences: float


def _engine(config: DictConfig, shape: ModelShape, models: int) -> _Engine:
    """The engine of one of so many models."""
    rollout = config.actor_rollout_ref.rollout
    tensor, number = int(rollout.tensor_model_parallel_size), BYTES.get(str(rollout.dtype), 2)
    weights = shape.parameters * number // tensor
    # A key-value head can't be split: more GPUs than heads store each of them more than once.
    per_token = 2 * shape.layers * -(-shape.kv_heads // tensor) * shape.head_size * number
    cache = _kv_cache(config, weights, models)
    return _Engine(weights, cache, per_token, cache / per_token / int(rollout.max_model_len))


def _update(config: DictConfig, shapes: Sequence[ModelShape]) -> TrainingMemory:
    """Memory of the largest update of a model, with the state of the others where it stays on the GPU."""
    fsdp = config.actor_rollout_ref.actor.fsdp_config
    updates = sorted((training_memory(config, shape) for shape in shapes), key=lambda one: one.peak(False))
    *others, largest = updates
    beside = {
        "weights": not (fsdp.param_offload or fsdp.offload_policy),
        "optimizer": not (fsdp.optimizer_offload or fsdp.offload_policy),
    }
    more = {name: sum(getattr(one, name) for one in others) for name, stays in beside.items() if stays}
    return replace(largest, **{name: getattr(largest, name) + size for name, size in more.items()})


def _process(talks: bool) -> int:
    """Bytes of a GPU that a process takes beside its tensors; more where it talks to other GPUs."""
    return int((CONTEXT_GIB + NCCL_GIB * talks) * GIB)


def _host_bytes(fsdp: DictConfig, master: int, shard: int, trained: int) -> int:
    """Bytes of a rank's training state in main memory: of its shard of parameters, of which those that are
    trained have gradients and moments."""
    if fsdp.offload_policy:
        return master * (shard + trained * (1 + ADAM_STATES))
    weights, moments = int(bool(fsdp.param_offload)), ADAM_STATES * int(bool(fsdp.optimizer_offload))
    return master * (shard * weights + trained * moments)


def _reference_bytes(config: DictConfig, shapes: Sequence[ModelShape], compute: int) -> int:
    """Bytes of a rank's part of the reference policies, which verl keeps in main memory: a model for each one
    that a policy begins as. With adapters it is the model without them."""
    rollout = config.actor_rollout_ref.rollout
    in_reward = OmegaConf.select(config, "algorithm.use_kl_in_reward")
    has_reference = bool(config.actor_rollout_ref.actor.use_kl_loss or in_reward)
    if adapters(rollout) or not has_reference:
        return 0
    paths = list(models(rollout).values()) if len(shapes) > 1 else [""]
    begun = dict(zip(paths, shapes, strict=True))
    return sum(shape.parameters // shards(config) * compute for shape in begun.values())


def _kv_cache(config: DictConfig, engine_weights: int, engines: int) -> int:
    """Bytes that an engine, one of so many on a GPU, gives to its key-value cache."""
    if str(config.trainer.device) == "cpu":
        variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
        return int(float(variables.get("VLLM_CPU_KVCACHE_SPACE", 4)) * GIB)
    share = float(config.actor_rollout_ref.rollout.gpu_memory_utilization) / engines * gpu_bytes(config)
    return max(0, int(share) - engine_weights - _ENGINE_RESERVE_GIB * GIB)


def gpu_bytes(config: DictConfig) -> int:
    """Memory of one GPU."""
    return int(float(config.marsrl.hardware.gpu_gib) * GIB)


def assumptions(config: DictConfig, estimate: MemoryEstimate) -> list[str]:
    """Assumptions of the estimate, for the plan."""
    on_cpu = str(config.trainer.device) == "cpu"
    actor = config.actor_rollout_ref.actor
    fsdp = actor.fsdp_config
    ranks, fused = shards(config), bool(config.actor_rollout_ref.model.use_fused_kernels)
    lines = (
        []
        if config.trainer.val_only
        else [
            f"training state in {fsdp.model_dtype}: weights, gradients and two AdamW moments"
            f"{' of the adapters alone' if adapters(config.actor_rollout_ref.rollout) else ''}, sharded over "
            f"{ranks} rank{'s' if ranks != 1 else ''}",
            f"one micro-batch of {micro_batch_tokens(config):,} tokens per rank; logits of "
            + (f"{FUSED_CHUNK} tokens at a time" if fused else "all of them at once"),
        ]
    )
    if estimate.trainer_on_host:
        state = f"{estimate.update.state / GIB:.1f} GiB"
        lines.append(f"offload_policy: the training state, {state}, stays in main memory")
    elif estimate.trainer_waits:
        lines.append("the training state moves to main memory while the engine decodes")
    count = len(models(config.actor_rollout_ref.rollout))
    if count > 1:
        waits = estimate.trainer_offloaded or estimate.trainer_on_host
        where = ", the others wait in main memory" if waits else ", the others stay beside it"
        lines.append(f"{count} models: one at a time is computed with{'' if on_cpu else where}")
    each = f" for each of {count} engines" if count > 1 else ""
    if on_cpu:
        lines.append(f"main memory of one rank; key-value cache from VLLM_CPU_KVCACHE_SPACE{each}")
    else:
        part = f"1/{count} of gpu_memory_utilization" if count > 1 else "gpu_memory_utilization"
        who = "the engine of each model" if count > 1 else "the engine"
        lines.append(
            f"GPUs of {config.marsrl.hardware.gpu_gib:g} GiB; {who} takes {part} of it, of which "
            f"{_ENGINE_RESERVE_GIB} GiB are no cache"
        )
    return lines
