"""An estimate of the memory that one GPU needs, with the assumptions it makes.

It is arithmetic, not a measurement: it tells settings that cannot fit from those that may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.adapters import adapters
from marsrl_verl.config.batching import world_size
from marsrl_verl.config.model_shapes import ModelShape
from marsrl_verl.config.models import models
from marsrl_verl.config.pools import own_pool_gpus
from marsrl_verl.settings.choices import Overlap

GIB = 1024**3
GPU_GIB = 80
"""Memory of the GPUs that the cluster presets are written for (`marsrl.hardware.gpu_gib`)."""
_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
_ADAM_STATES = 2
_PLAIN_ACTIVATION_BYTES = 34
"""Bytes per token, layer and hidden unit without gradient checkpointing (bfloat16, flash attention)."""
_FUSED_CHUNK = 512
"""Tokens whose logits verl's fused kernels compute at once (`FusedLinearForPPO`)."""
_ENGINE_RESERVE_GIB = 2
"""Activations, graphs and buffers of the engine."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes per GPU."""

    parameters: int
    train_weights: int
    gradients: int
    optimizer: int
    gathered: int
    """Two layers' weights that FSDP gathers to compute one while the next arrives."""
    activations: int
    accumulated: int
    """Gradients of all parameters that add up on each GPU before they are sent (no_sync)."""
    logits: int
    engine_weights: int
    kv_cache: int
    kv_bytes_per_token: int
    """Of one GPU; an engine of several GPUs spreads the heads. This and the next two are of the model whose
    engine holds the fewest sequences."""
    kv_tokens: int
    longest_sequences: float
    """How many sequences of the greatest length the cache of one engine holds at once."""
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
    def training(self) -> int:
        """Most bytes while an update is computed."""
        state = 0 if self.trainer_on_host else self.train_weights + self.gradients + self.optimizer
        away = self.engine_sleeps or self.engine_apart
        engine = 0 if away else self.engine_weights + self.kv_cache
        return state + self.accumulated + self.gathered + self.activations + self.logits + engine

    @property
    def trainer_waits(self) -> bool:
        """The training state moves to main memory while the engine decodes on the same GPUs."""
        return self.trainer_offloaded and not self.overlap and not self.engine_apart

    @property
    def decoding(self) -> int:
        """Most bytes while the engine decodes."""
        waits = self.trainer_waits or self.trainer_on_host or self.engine_apart
        state = 0 if waits else self.train_weights + self.optimizer
        return state + self.engine_weights + self.kv_cache


def estimate_memory(config: DictConfig, *shapes: ModelShape) -> MemoryEstimate:
    """The estimate for a checked configuration.

    Args:
        shapes: of each model that is trained, in the order of `config.models.models`; one with adapters.
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    fsdp = actor.fsdp_config
    gpus = world_size(config)
    master = _BYTES.get(str(fsdp.model_dtype), 4)
    compute = _BYTES.get(str(fsdp.dtype), 2)
    tokens = int(actor.ppo_max_token_len_per_gpu)
    checkpointing = bool(config.actor_rollout_ref.model.enable_gradient_checkpointing)
    per_unit = compute if checkpointing else _PLAIN_ACTIVATION_BYTES
    engines = [_engine(config, shape, len(shapes)) for shape in shapes]
    fewest = min(engines, key=lambda one: one.longest_sequences)
    ranks = min(gpus, int(config.trainer.n_gpus_per_node))
    own = adapter_parameters(config, shapes[0])
    shards = [shape.parameters // gpus for shape in shapes]
    trained = [own // gpus if own else shard for shard in shards]
    # An engine that is sent adapters alone keeps the model for when it wakes.
    asleep = sum(one.weights for one in engines) if own and rollout.free_cache_engine else 0
    waiting = [ranks * _host_bytes(fsdp, master, *counts) for counts in zip(shards, trained, strict=True)]
    # One model at a time is computed with; what is offloaded of the others is not on the GPU.
    weights_at_once = max if fsdp.param_offload or fsdp.offload_policy else sum
    moments_at_once = max if fsdp.optimizer_offload or fsdp.offload_policy else sum
    return MemoryEstimate(
        parameters=sum(shape.parameters for shape in shapes),
        train_weights=weights_at_once((shard + own // gpus) * master for shard in shards),
        gradients=max(trained) * master,
        optimizer=moments_at_once(count * master * _ADAM_STATES for count in trained),
        gathered=0 if gpus == 1 else 2 * max(shape.layer_parameters for shape in shapes) * compute,
        activations=max(shape.layers * shape.hidden for shape in shapes) * tokens * per_unit,
        accumulated=max(own or shape.parameters for shape in shapes) * master if _accumulates(fsdp) else 0,
        logits=2 * _logit_tokens(config, tokens) * max(shape.vocabulary for shape in shapes) * 4,
        engine_weights=sum(one.weights for one in engines),
        kv_cache=sum(one.kv_cache for one in engines),
        kv_bytes_per_token=fewest.kv_bytes_per_token,
        kv_tokens=fewest.kv_cache // fewest.kv_bytes_per_token,
        longest_sequences=fewest.longest_sequences,
        trainer_offloaded=bool(fsdp.param_offload and fsdp.optimizer_offload),
        trainer_on_host=bool(fsdp.offload_policy),
        engine_sleeps=bool(rollout.free_cache_engine),
        engine_apart=own_pool_gpus(rollout) > 0,
        overlap=config.marsrl.pipeline.overlap == Overlap.ONE_STEP.value,
        host_loading=max(
            sum(waiting[:place]) + shape.parameters * master * (ranks if shape.tied else 1)
            for place, shape in enumerate(shapes)
        ),
        host_waiting=sum(waiting) + ranks * (_reference_bytes(config, shapes, gpus, compute) + asleep),
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
    tensor, number = int(rollout.tensor_model_parallel_size), _BYTES.get(str(rollout.dtype), 2)
    weights = shape.parameters * number // tensor
    # A key-value head can't be split: more GPUs than heads store each of them more than once.
    per_token = 2 * shape.layers * -(-shape.kv_heads // tensor) * shape.head_size * number
    cache = _kv_cache(config, weights, models)
    return _Engine(weights, cache, per_token, cache / per_token / int(rollout.max_model_len))


def adapter_parameters(config: DictConfig, shape: ModelShape) -> int:
    """Parameters of all LoRA adapters; 0 where the model itself is trained."""
    each = int(config.actor_rollout_ref.model.lora_rank) * shape.linear_ends * shape.layers
    return each * len(adapters(config.actor_rollout_ref.rollout))


def _accumulates(fsdp: DictConfig) -> bool:
    return bool(fsdp.get("use_no_sync_for_gradient_accumulation", False))


def _logit_tokens(config: DictConfig, tokens: int) -> int:
    """Tokens whose logits exist at once."""
    return min(tokens, _FUSED_CHUNK) if config.actor_rollout_ref.model.use_fused_kernels else tokens


def _host_bytes(fsdp: DictConfig, master: int, shard: int, trained: int) -> int:
    """Bytes of a rank's training state that lie in main memory.

    Args:
        shard: its parameters.
        trained: those of them that have gradients and moments.
    """
    if fsdp.offload_policy:
        return master * (shard + trained * (1 + _ADAM_STATES))
    weights, moments = int(bool(fsdp.param_offload)), _ADAM_STATES * int(bool(fsdp.optimizer_offload))
    return master * (shard * weights + trained * moments)


def _reference_bytes(config: DictConfig, shapes: Sequence[ModelShape], gpus: int, compute: int) -> int:
    """Bytes of a rank's part of the reference policies, which verl keeps in main memory: a model for each one
    that a policy begins as. With adapters it is the model without them."""
    rollout = config.actor_rollout_ref.rollout
    in_reward = OmegaConf.select(config, "algorithm.use_kl_in_reward")
    has_reference = bool(config.actor_rollout_ref.actor.use_kl_loss or in_reward)
    if adapters(rollout) or not has_reference:
        return 0
    paths = list(models(rollout).values()) if len(shapes) > 1 else [""]
    begun = dict(zip(paths, shapes, strict=True))
    return sum(shape.parameters // gpus * compute for shape in begun.values())


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
    """What the estimate takes for granted, for the plan."""
    on_cpu = str(config.trainer.device) == "cpu"
    actor = config.actor_rollout_ref.actor
    fsdp = actor.fsdp_config
    lines = [
        f"training state in {fsdp.model_dtype}: weights, gradients and two AdamW moments"
        f"{' of the adapters alone' if adapters(config.actor_rollout_ref.rollout) else ''}, sharded over "
        f"{world_size(config)} rank{'s' if world_size(config) != 1 else ''}",
        f"one micro-batch of {int(actor.ppo_max_token_len_per_gpu):,} tokens per rank; logits and their "
        "gradient in float32"
        + (f", {_FUSED_CHUNK} tokens at a time" if config.actor_rollout_ref.model.use_fused_kernels else ""),
    ]
    if estimate.trainer_on_host:
        lines.append("offload_policy: the training state stays in main memory")
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
