"""Checks of the estimated memory: a plan that cannot fit is refused."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.memory import GIB, USABLE, MemoryEstimate, estimate_memory, gpu_bytes, model_shapes
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.settings.issues import ConfigIssue

_GPU, _HOST = "marsrl.hardware.gpu_gib", "marsrl.hardware.host_gib"
_ROLLOUT = "actor_rollout_ref.rollout"
_SHARE = f"{_ROLLOUT}.gpu_memory_utilization"
_CPU_CACHE = "ray_kwargs.ray_init.runtime_env.env_vars.VLLM_CPU_KVCACHE_SPACE"


def check_cpu_cache(ctx: Context) -> Iterator[ConfigIssue]:
    """The engine's cache on the processor is said once, and is a number."""
    if not ctx.on_cpu or (value := ctx.get(_CPU_CACHE)) is None:
        return
    if not _is_size(value):
        yield ctx.issue(_CPU_CACHE, "A number of GiB above 0 is expected.", "Set it to 1, for example.")
    around = os.environ.get(name := _CPU_CACHE.rpartition(".")[2], value)
    if around != str(value) and not joins_cluster(ctx.config):
        what = f"The environment says {name}={around}, and the workers get what the configuration says."
        fix = f"Set {_CPU_CACHE}={around}, or unset the variable."
        if not _is_size(around):
            what, fix = f"The environment says {name}={around}; expected a number of GiB.", f"unset {name}"
        yield ctx.issue(_CPU_CACHE, what, fix)


def _is_size(text: object) -> bool:
    try:
        return 0 < float(str(text)) < math.inf
    except ValueError:
        return False


def check_memory(ctx: Context) -> Iterator[ConfigIssue]:
    """GPUs, the engine's cache and main memory of a node, for a model of known size."""
    shapes = [] if ctx.prepares_data else model_shapes(ctx.config)
    if not shapes:
        return
    estimate = estimate_memory(ctx.config, *shapes)
    if estimate.longest_sequences < 1.0:
        what = (
            f"Beside the weights, {_gib(estimate.engine_weights)}, the engine{_beside(len(shapes))} holds "
            f"{estimate.kv_tokens:,} tokens, and one sequence may have "
            f"{ctx.get(f'{_ROLLOUT}.max_model_len'):,}."
        )
        fix = (
            f"Spread the engine over more GPUs ({_ROLLOUT}.tensor_model_parallel_size), or give it more "
            "memory."
        )
        if ctx.on_cpu:
            fix = "Set it to more GiB, or limit prompts and responses."
        yield ctx.issue(_CPU_CACHE if ctx.on_cpu else _SHARE, what, fix)
    if not ctx.on_cpu:
        yield from _check_gpu(ctx, estimate, len(shapes))
    limit, loading = ctx.get(_HOST), estimate.host_loading >= estimate.host_waiting
    if limit is None and not ctx.dry_run and not joins_cluster(ctx.config):
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if limit is not None and estimate.host > limit * GIB:
        reason = "while the model is read" if loading else "for what of the trainer lies there"
        fix = (
            "nodes with more memory, or more nodes"
            if loading
            else "more memory, more nodes, or less offloading"
        )
        what = f"A node's main memory takes {_gib(estimate.host)} {reason}; it has {limit:.0f} GiB."
        yield ctx.issue(_HOST, what, f"Use {fix}.")


def _beside(count: int) -> str:
    return f" of one of {count} models" if count > 1 else ""


def _check_gpu(ctx: Context, estimate: MemoryEstimate, count: int) -> Iterator[ConfigIssue]:
    peak, training = max(estimate.training, estimate.decoding), estimate.training >= estimate.decoding
    if not estimate.exceeds(gpu_bytes(ctx.config)):
        return
    awake, update = not (estimate.engine_sleeps or estimate.engine_apart), estimate.update
    parts = estimate.training_parts if training else estimate.decoding_parts
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    what = (
        f"The plan takes {_gib(peak)} of each GPU while {'training' if training else 'decoding'}: "
        f"{', '.join(f'{name} {_gib(size)}' for name, size in largest)}. At most "
        f"{USABLE * gpu_bytes(ctx.config) / GIB:.1f} GiB ({100 * USABLE:.0f} %) may be planned."
    )
    ways = {
        f"pipeline=overlapped_two_pools, a lower {_SHARE}": awake and estimate.overlap,
        "actor_rollout_ref.model.use_fused_kernels=true, a lower ppo_max_token_len_per_gpu": (
            training and update.head > max(4 * GIB, update.layer)
        ),
        "use_no_sync_for_gradient_accumulation=false": update.accumulated > 0,
        "actor_rollout_ref.actor.fsdp_config.offload_policy=true": not estimate.trainer_on_host,
        "adapters on one model (policies=lora_per_role)": count > 1,
    }
    out = "; or ".join(way for way, helps in ways.items() if helps) or f"a lower {_SHARE}"
    yield ctx.issue(_GPU, what, f"Use more GPUs, or {out}. GPUs with more memory: set {_GPU}.")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
