"""Memory of one GPU while an update is computed, by hand.

The update has three moments that may be its fullest: the head (logits and their gradient), the backward pass
of one layer (computed again under gradient checkpointing), the optimizer's step. Each stands on the sharded
state and, but for the last one, on what the forward pass keeps. `benchmarks/training_memory.py` counts it
by running an update without content.
"""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.batching import world_size
from marsrl_verl.config.model_shapes import ModelShape
from marsrl_verl.config.models import adapters

GIB = 1024**3
BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
ADAM_STATES = 2
FUSED_CHUNK = 512
"""Tokens whose logits verl's fused kernels compute at once (`FusedLinearForPPO`)."""
_FLOAT = 4
_NO_SYNC = "use_no_sync_for_gradient_accumulation"
CONTEXT_GIB = 0.5
"""A process's CUDA context with its kernels."""
NCCL_GIB = 1.0
"""Buffers of a process that talks to other GPUs."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes per GPU; where several models are trained, those of one while it is computed with."""

    weights: int
    gradients: int
    optimizer: int
    saved: int
    """Arrays that the forward pass keeps for the backward pass: the input of every layer, or, without
    gradient checkpointing, all that its layers compute."""
    layer: int
    """The backward pass of one layer: what is computed of it again, its weights and the next one's gathered,
    gradients on their way, and the head's weights and gradient where they stay meanwhile."""
    head: int
    """The head: its weights and gradient, logits and what is made of them."""
    step: int
    """Temporary arrays of the optimizer's step."""
    accumulated: int
    """Gradients of all parameters that add up on each GPU before they are sent (no_sync)."""

    @property
    def state(self) -> int:
        """Bytes of the training state, which stays between two updates."""
        return self.weights + self.gradients + self.optimizer

    def parts(self, on_host: bool) -> dict[str, int]:
        """Bytes by part at the fullest moment.

        Args:
            on_host: the state lies in main memory, and the optimizer works there.
        """
        state = {} if on_host else {"the training state": self.state}
        if self.accumulated:
            state["accumulated gradients"] = self.accumulated
        passing = {"layers' inputs": self.saved, "one layer": self.layer}
        if self.head > self.layer:
            passing = {"layers' inputs": self.saved, "head and logits": self.head}
        if not on_host and self.step > sum(passing.values()):
            passing = {"the optimizer's step": self.step}
        return state | passing

    def peak(self, on_host: bool) -> int:
        """Most bytes of an update; `on_host` as above."""
        return sum(self.parts(on_host).values())


def training_memory(config: DictConfig, shape: ModelShape) -> TrainingMemory:
    """The memory of one model's update."""
    fsdp, numbers = config.actor_rollout_ref.actor.fsdp_config, Numbers(config)
    checkpointing = bool(config.actor_rollout_ref.model.enable_gradient_checkpointing)
    tokens, own = micro_batch_tokens(config), adapter_parameters(config, shape)
    shard = shape.parameters // shards(config)
    trained = own // shards(config) if own else shard
    inputs = shape.layers * tokens * shape.hidden * numbers.compute
    kept, working = _layer_bytes(shape, numbers, int(fsdp.ulysses_sequence_parallel_size))
    return TrainingMemory(
        weights=(shard + own // shards(config)) * numbers.master,
        gradients=trained * numbers.master,
        optimizer=trained * numbers.master * ADAM_STATES,
        saved=inputs if checkpointing else shape.layers * tokens * kept,
        layer=tokens * (kept + working if checkpointing else working) + _gathered(config, shape, numbers),
        head=_head(config, shape, numbers, tokens),
        step=0 if _in_one_kernel(config) else trained * numbers.master,
        # Gradients add up on each rank before they are sent.
        accumulated=(own or shape.parameters) * numbers.master if fsdp.get(_NO_SYNC) else 0,
    )


def micro_batch_tokens(config: DictConfig) -> int:
    """Most tokens of a micro-batch on one rank."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        return int(actor.ppo_max_token_len_per_gpu)
    rows = int(actor.ppo_micro_batch_size_per_gpu)
    return rows * int(config.actor_rollout_ref.rollout.max_model_len)


class Numbers:
    """Bytes of the trainer's number formats."""

    def __init__(self, config: DictConfig) -> None:
        fsdp = config.actor_rollout_ref.actor.fsdp_config
        precision = fsdp.get("mixed_precision") or {}
        self.master = BYTES.get(str(fsdp.model_dtype), _FLOAT)
        # FSDP2 of verl takes these where nothing is said.
        self.compute = BYTES.get(str(precision.get("param_dtype", "bf16")), 2)
        self.reduce = BYTES.get(str(precision.get("reduce_dtype", "fp32")), _FLOAT)


def shards(config: DictConfig) -> int:
    """Ranks that share one copy of the training state (`fsdp_size`; all of them where it says nothing)."""
    ranks, size = world_size(config), int(config.actor_rollout_ref.actor.fsdp_config.fsdp_size)
    return size if 0 < size < ranks else ranks


def adapter_parameters(config: DictConfig, shape: ModelShape) -> int:
    """Parameters of all LoRA adapters; 0 where the model itself is trained."""
    each = int(config.actor_rollout_ref.model.lora_rank) * shape.linear_ends * shape.layers
    return each * len(adapters(config.actor_rollout_ref.rollout))


def _layer_bytes(shape: ModelShape, numbers: Numbers, sharing: int) -> tuple[int, int]:
    """Bytes a token of one layer: what its backward pass needs, and what that adds at its fullest, which is
    in the feed-forward part, where so many GPUs share a sequence."""
    number, hidden, wide = numbers.compute, shape.hidden, shape.feed_forward
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    # Norms: the input in float32, normalised, and weighted.
    norms = 2 * hidden * (_FLOAT + 2 * number)
    attention = number * (2 * queries + 2 * shape.head_size * max(shape.kv_heads, sharing))
    if sharing > 1:
        attention += number * queries  # the output before and after heads are exchanged
    if shape.query_norms:
        attention += (queries + keys) * (_FLOAT + number)
    if shape.experts_per_token:
        # Every expert of a token gets its own copy of the input and makes an output.
        kept = number * shape.experts_per_token * (2 * hidden + 4 * wide)
        working = number * shape.experts_per_token * 3 * hidden
    else:
        kept, working = number * 4 * wide, number * 2 * wide
    return norms + attention + kept, working + 2 * number * hidden


def _gathered(config: DictConfig, shape: ModelShape, numbers: Numbers) -> int:
    """Weights and gradients that are whole on each GPU while a layer's backward pass runs."""
    fused, train = bool(config.actor_rollout_ref.model.use_fused_kernels), not adapters_alone(config)
    layer, head = shape.layer_parameters, shape.vocabulary * shape.hidden
    # One layer, and the one that comes next; or all of them.
    reshards = config.actor_rollout_ref.actor.fsdp_config.reshard_after_forward
    gathered = (2 * layer if reshards else shape.layers * layer) * numbers.compute
    in_root = fused or shape.tied
    if in_root:  # the root's weights and gradients stay until the pass ends
        gathered += head * numbers.compute * (2 if train else 1)
    sent = layer if in_root else max(layer, head)
    return gathered + (sent * numbers.reduce if train else 0)


def _head(config: DictConfig, shape: ModelShape, numbers: Numbers, tokens: int) -> int:
    model, head = config.actor_rollout_ref.model, shape.vocabulary * shape.hidden
    # The last norm, the hidden states and their gradient.
    hidden = tokens * shape.hidden * (_FLOAT + 4 * numbers.compute)
    weights = head * numbers.compute
    if model.use_fused_kernels:
        # A part's logits in the format of the computation, and five arrays made of them in float32.
        logits = min(tokens, FUSED_CHUNK) * shape.vocabulary * (numbers.compute + 5 * _FLOAT)
        gradient = head * (_FLOAT + numbers.compute)  # the sum, and a part's
    else:
        logits = tokens * shape.vocabulary * _logit_bytes(config, numbers)
        gradient = head * (numbers.compute + numbers.reduce)
    return hidden + weights + logits + (0 if adapters_alone(config) else gradient)


def _logit_bytes(config: DictConfig, numbers: Numbers) -> int:
    """Bytes of a token's logit for a word, with what is made of it."""
    actor = config.actor_rollout_ref.actor
    entropy = bool(float(actor.entropy_coeff or 0) or actor.get("calculate_entropy"))
    attention = OmegaConf.select(config, "actor_rollout_ref.model.override_config.attn_implementation")
    roles = (OmegaConf.select(config, "marsrl.roles") or {}).values()
    temperatures = {float(config.actor_rollout_ref.rollout.temperature)}
    temperatures |= {float(one.temperature) for one in roles if "temperature" in one}
    scaled = numbers.compute if temperatures != {1.0} else 0
    # With entropy: its own gradient, and in float32 the logits and their softmax.
    extra = numbers.compute + (0 if actor.fsdp_config.entropy_checkpointing else 2 * _FLOAT) if entropy else 0
    if str(attention).startswith("flash"):
        # flash-attn's cross-entropy overwrites the logits by their gradient.
        return numbers.compute + scaled + extra
    return 3 * _FLOAT + scaled + extra  # log-softmax, its gradient, the logits' gradient


def adapters_alone(config: DictConfig) -> bool:
    """True if LoRA adapters are trained, and the model is not."""
    return bool(adapters(config.actor_rollout_ref.rollout))


def _in_one_kernel(config: DictConfig) -> bool:
    """True if the optimizer's step needs no array of its own: torch's default on GPUs makes one of the
    parameters' size, and on the processor goes parameter by parameter."""
    optim = config.actor_rollout_ref.actor.optim
    chosen = optim.get("override_optimizer_config") or {}
    return str(config.trainer.device) == "cpu" or bool(chosen.get("fused")) or chosen.get("foreach") is False
