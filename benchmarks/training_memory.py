"""Memory of a GPU while it trains, counted tensor by tensor, beside what the plan says.

    python -m benchmarks.training_memory                        # six settings, some minutes, no GPU
    python -m benchmarks.training_memory --only 4B --json docs/results/training_memory.json

The update is run on fake tensors, which have shapes and no content: transformers' model, FSDP2 with a process
group of as many ranks as the setting has, gradient checkpointing, the head as the trainer computes it, AdamW.
Every storage is counted while it lives. Nothing of the plan's arithmetic is used. Three things are written
here, as they have no kernel on a processor: flash attention (queries, keys, values, output and a log-sum-exp
are kept), flash-attn's cross-entropy (its gradient takes the place of the logits) and the exchange of heads
between GPUs. What no tensor shows (contexts, NCCL, a sleeping engine) is a constant of the plan (`in all`).
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.record import options, write_json
from benchmarks.tables import table
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config
from marsrl_verl.config.memory import GIB, estimate_memory
from marsrl_verl.config.model_shapes import PUBLISHED, shape_from_config

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Setting:
    """A published preset."""

    name: str
    words: tuple[str, ...]


SETTINGS = (
    Setting("30B, 8 x 80", ("model=qwen3_30b_a3b_thinking_2507", "cluster=8xgpu")),
    Setting("30B, 32 x 80", ("model=qwen3_30b_a3b_thinking_2507", "cluster=4x8xgpu")),
    Setting("4B, 8 x 80", ("model=qwen3_4b_thinking_2507", "cluster=8xgpu")),
    Setting(
        "two 7B, 8 x 80",
        ("algo=rema_separate", "model=qwen2_5_7b_instruct", "training=rema_published", "cluster=8xgpu"),
    ),
    Setting(
        "1.5B AttnRL, 8 x 80",
        (
            "algo=attnrl",
            "model=r1_distill_qwen_1_5b",
            "training=attnrl_published",
            "reward=hybrid",
            "cluster=8xgpu",
        ),
    ),
    Setting(
        "8B ReMA single turn, 8 x 80",
        (
            "algo=rema_single_turn",
            "model=llama3_1_8b_instruct",
            "training=rema_single_turn_published_llama3_1_8b",
            "cluster=8xgpu",
        ),
    ),
)


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that live, and the most there were in each stage."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.stage = 0, ""
        self.peaks: dict[str, int] = {}
        self._sizes: dict[int, int] = {}

    def add(self, tensor: Any) -> None:
        """Counts the storage of a tensor from now on."""
        if not isinstance(tensor, torch.Tensor):
            return
        if hasattr(tensor, "_local_tensor"):  # a DTensor
            return self.add(tensor._local_tensor)
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = 0
            weakref.finalize(storage, self._drop, storage._cdata)
            self._resize(storage, storage.nbytes())

    def _resize(self, storage: Any, size: int) -> None:
        self.now += size - self._sizes[storage._cdata]
        self._sizes[storage._cdata] = size
        self.peaks[self.stage] = max(self.peaks.get(self.stage, 0), self.now)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            self.add(tensor)
        return result

    def __enter__(self) -> LiveBytes:
        self._upstream = upstream = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:  # FSDP frees gathered weights by it
            result = upstream(storage, size)
            if storage._cdata in self._sizes:
                self._resize(storage, size)
            return result

        setattr(torch.UntypedStorage, "resize_", resize)  # noqa: B010
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        setattr(torch.UntypedStorage, "resize_", self._upstream)  # noqa: B010
        super().__exit__(*error)


class FlashAttention(torch.autograd.Function):
    """What flash attention keeps and allocates; queries (B, H, T, D), keys and values (B, K, T, D)."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        output = query.new_empty(query.transpose(1, 2).shape)  # (B, T, H, D), as the next product takes it
        log_sum_exp = query.new_empty(query.shape[:3], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, log_sum_exp)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, _, _ = ctx.saved_tensors
        # Queries' gradient adds up in float32.
        adding = torch.empty_like(query, dtype=torch.float32)
        return adding.to(query.dtype), torch.empty_like(key), torch.empty_like(value)


class CrossEntropy(torch.autograd.Function):
    """flash-attn's, from logits (T, V): with `inplace_backward` the gradient overwrites them."""

    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits)
        return logits.new_empty(logits.shape[0], dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return ctx.saved_tensors[0]


def attention_of(ranks: int) -> Callable[..., Any]:
    """Attention of so many GPUs that share a sequence: each has its part of the tokens outside, of the heads
    inside; a head that is on more than one GPU is repeated before."""

    def attend(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        def exchange(states: Any) -> Any:
            if ranks == 1:
                return states
            repeats = max(1, ranks // states.shape[1])
            # As many bytes arrive as are sent; one buffer for each side.
            return states.repeat_interleave(repeats, dim=1).clone() if repeats > 1 else states.clone()

        found = FlashAttention.apply(*(exchange(states) for states in (query, key, value)))
        return found if ranks == 1 else found.clone(), None

    return attend


def composed(words: tuple[str, ...]) -> DictConfig:
    """The configuration of a run."""
    return compose_config(
        parse_arguments([*words, "data=parquet", "ray_kwargs.ray_init.address=auto"])
    ).config


def counted(config: DictConfig, model: dict[str, Any]) -> dict[str, int]:
    """The most bytes of one GPU in each stage of an update.

    Args:
        config: of the run; one of its models.
        model: what the model's `config.json` says.
    """
    fsdp, gpus = (
        config.actor_rollout_ref.actor.fsdp_config,
        config.trainer.nnodes * config.trainer.n_gpus_per_node,
    )
    shards = int(fsdp.fsdp_size)
    shape = (gpus,) if shards < 0 or shards >= gpus else (gpus // shards, shards)
    # A tensor has no content, so the one process may stand for all ranks.
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    try:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("ddp", "fsdp")[-len(shape) :])
        with FakeTensorMode():
            return _update(config, model, mesh)
    finally:
        dist.destroy_process_group()
        ALL_ATTENTION_FUNCTIONS.pop("counted", None)


def _update(config: DictConfig, model: dict[str, Any], mesh: Any) -> dict[str, int]:
    settings, fsdp = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.fsdp_config
    ALL_ATTENTION_FUNCTIONS["counted"] = attention_of(int(fsdp.ulysses_sequence_parallel_size))
    sizes = AutoConfig.for_model(
        model["model_type"],
        **{name: value for name, value in model.items() if name != "model_type" and value is not None},
    )
    network: Any = AutoModelForCausalLM.from_config(sizes, attn_implementation="counted", dtype=torch.float32)
    network.train()
    if settings.enable_gradient_checkpointing:
        network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    precision = fsdp.get("mixed_precision") or {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    kinds = {name: _DTYPES[precision[name]] for name in ("param_dtype", "reduce_dtype")}
    units = list(network.model.layers)
    if not sizes.tie_word_embeddings:  # as verl wraps them; fused kernels read the head's weight in the root
        units += [network.model.embed_tokens, *([] if settings.use_fused_kernels else [network.lm_head])]
    for unit in (*units, network):
        policy = MixedPrecisionPolicy(**kinds, cast_forward_inputs=True)
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=bool(fsdp.reshard_after_forward))
    # Parameters on a GPU get the implementation `foreach` where none is named.
    chosen = config.actor_rollout_ref.actor.optim.get("override_optimizer_config") or {"foreach": True}
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, **chosen)
    tokens = int(config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)
    live = LiveBytes()
    for tensor in (*network.parameters(), *network.buffers()):
        live.add(tensor)
    head = _fused(network) if settings.use_fused_kernels else _plain(network)
    with live:
        # The second update has moments, its second micro-batch gradients.
        for micro_batches in (1, 2):
            live.peaks.clear()
            for _ in range(micro_batches):
                live.stage = "forward pass"
                with torch.autocast("cpu", dtype=kinds["param_dtype"]):
                    log_probs = head(torch.zeros(1, tokens, dtype=torch.long))
                    loss = log_probs.mean()
                live.stage = "backward pass"
                loss.backward()
            del loss, log_probs
            live.stage = "optimizer"
            optimizer.step()
            optimizer.zero_grad()
    return dict(live.peaks)


def _plain(network: Any) -> Callable[[Any], Any]:
    """Log-probabilities from the logits of all tokens."""

    def log_probs(ids: Any) -> Any:
        output = network(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None], use_cache=False)
        return CrossEntropy.apply(output.logits.squeeze(0))

    return log_probs


def _fused(network: Any) -> Callable[[Any], Any]:
    """Log-probabilities of the trainer's own fused kernel, inside of the model's call as verl has it."""
    from marsrl_verl.verl_adapter.engine.fused_head import FusedLinear

    def forward(input_ids: Any, position_ids: Any) -> Any:
        hidden = network.model(input_ids=input_ids, position_ids=position_ids, use_cache=False)[0]
        return FusedLinear.apply(hidden, network.lm_head.weight, input_ids, 1.0, 512)[0]

    network.forward = forward
    return lambda ids: network(input_ids=ids, position_ids=torch.arange(ids.shape[1])[None])


def compared(setting: Setting) -> dict[str, Any]:
    """A row of the table: GiB as planned and as counted."""
    config = composed(setting.words)
    model = PUBLISHED[str(config.actor_rollout_ref.model.path)]
    stages = counted(config, model)
    shape = shape_from_config(model)
    assert shape is not None
    number = max(1, len(config.actor_rollout_ref.rollout.custom.models or {}))
    planned = estimate_memory(config, *[shape] * number)
    row = {stage: round(peak / GIB, 2) for stage, peak in stages.items()}
    return {
        "setting": setting.name,
        "words": list(setting.words),
        **row,
        "counted": round(max(stages.values()) / GIB, 2),
        "planned": round(planned.update.peak(planned.trainer_on_host) / GIB, 2),
        "in all": round(planned.training / GIB, 2),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="settings with this in their names")
    chosen = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        if chosen.only in setting.name:
            rows.append(compared(setting))
            print(json.dumps(rows[-1]), flush=True)
    names = [name for name in rows[0] if name != "words"]
    print(table(names, [[str(row[name]) for name in names] for row in rows]))
    write_json(chosen.json, rows)


if __name__ == "__main__":
    main()
