"""An estimate of the memory that one GPU needs, with the assumptions it makes.

It is arithmetic, not a measurement: it tells settings that cannot fit from those that may.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.adapters import adapters
from marsrl_verl.config.batching import world_size
from marsrl_verl.config.model_shapes import ModelShape
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
    """Of one GPU; an engine of several GPUs spreads the heads."""
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


def estimate_memory(config: DictConfig, shape: ModelShape) -> MemoryEstimate:
    """The estimate for a checked configuration."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    fsdp = actor.fsdp_config
    gpus = world_size(config)
    master = _BYTES.get(str(fsdp.model_dtype), 4)
    compute = _BYTES.get(str(fsdp.dtype), 2)
    tokens = int(actor.ppo_max_token_len_per_gpu)
    checkpointing = bool(config.actor_rollout_ref.model.enable_gradient_checkpointing)
    per_unit = compute if checkpointing else _PLAIN_ACTIVATION_BYTES
    tensor = int(rollout.tensor_model_parallel_size)
    engine_bytes = _BYTES.get(str(rollout.dtype), 2)
    engine_weights = shape.parameters * engine_bytes // tensor
    # A key-value head can't be split: more GPUs than heads store each of them more than once.
    kv_per_token = 2 * shape.layers * -(-shape.kv_heads // tensor) * shape.head_size * engine_bytes
    kv_cache = _kv_cache(config, engine_weights)
    shard, ranks = shape.parameters // gpus, min(gpus, int(config.trainer.n_gpus_per_node))
    own, reference = adapter_parameters(config, shape), compute if _has_reference(config) else 0
    trained = own // gpus if own else shard
    # An engine that is sent adapters alone keeps the model for when it wakes.
    asleep = engine_weights if own and rollout.free_cache_engine else 0
    return MemoryEstimate(
        parameters=shape.parameters,
        train_weights=(shard + own // gpus) * master,
        gradients=trained * master,
        optimizer=trained * master * _ADAM_STATES,
        gathered=0 if gpus == 1 else 2 * shape.layer_parameters * compute,
        activations=shape.layers * tokens * shape.hidden * per_unit,
        accumulated=(own or shape.parameters) * master if _accumulates(fsdp) else 0,
        logits=2 * _logit_tokens(config, tokens) * shape.vocabulary * 4,
        engine_weights=engine_weights,
        kv_cache=kv_cache,
        kv_bytes_per_token=kv_per_token,
        kv_tokens=kv_cache // kv_per_token,
        longest_sequences=kv_cache / kv_per_token / int(rollout.max_model_len),
        trainer_offloaded=bool(fsdp.param_offload and fsdp.optimizer_offload),
        trainer_on_host=bool(fsdp.offload_policy),
        engine_sleeps=bool(rollout.free_cache_engine),
        engine_apart=own_pool_gpus(rollout) > 0,
        overlap=config.marsrl.pipeline.overlap == Overlap.ONE_STEP.value,
        host_loading=shape.parameters * master * (ranks if shape.tied else 1),
        host_waiting=ranks * (_host_bytes(fsdp, master, shard, trained) + shard * reference + asleep),
    )


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


def _has_reference(config: DictConfig) -> bool:
    """verl keeps the reference policy in main memory; with adapters it is the model without them."""
    if adapters(config.actor_rollout_ref.rollout):
        return False
    in_reward = OmegaConf.select(config, "algorithm.use_kl_in_reward")
    return bool(config.actor_rollout_ref.actor.use_kl_loss or in_reward)


def _kv_cache(config: DictConfig, engine_weights: int) -> int:
    """Bytes that the engine of one GPU gives to its key-value cache."""
    if str(config.trainer.device) == "cpu":
        variables = OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {}
        return int(float(variables.get("VLLM_CPU_KVCACHE_SPACE", 4)) * GIB)
    share = float(config.actor_rollout_ref.rollout.gpu_memory_utilization) * gpu_bytes(config)
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
    if on_cpu:
        lines.append("main memory of one rank; key-value cache from VLLM_CPU_KVCACHE_SPACE")
    else:
        lines.append(
            f"GPUs of {config.marsrl.hardware.gpu_gib:g} GiB; the engine takes gpu_memory_utilization of it, "
            f"of which {_ENGINE_RESERVE_GIB} GiB are no cache"
        )
    return lines
