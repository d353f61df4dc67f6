"""Checks of overlapped generation and of engines on GPUs of their own."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context, at_least, one_of
from marsrl_verl.config.pools import CPU_SYNC, CPU_SYNC_MODULE, GPU_SYNC, SHARED_SYNC, own_pool_gpus
from marsrl_verl.config.upstream_names import weight_syncs
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.settings.choices import Overlap
from marsrl_verl.settings.issues import ConfigIssue

_OVERLAP = "marsrl.pipeline.overlap"
_ROLLOUT = "actor_rollout_ref.rollout"
_NODES, _GPUS = f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node"
_SYNC = f"{_ROLLOUT}.checkpoint_engine.backend"
_MODULE = f"{_ROLLOUT}.checkpoint_engine.custom_backend_module"
_PRESET = "pipeline=overlapped_two_pools"


def check_overlap(ctx: Context) -> list[ConfigIssue]:
    """Whether generation may run while the trainer works."""
    pipeline = ctx.settings.pipeline
    problems: list[ConfigIssue] = []
    if pipeline.overlap is Overlap.NONE:
        return problems
    if pipeline.mode is Mode.SEQUENTIAL:
        what = "In sequential mode the rounds of a step follow from each other, so none can be decoded ahead."
        problems.append(
            ConfigIssue(_OVERLAP, what, f"Set pipeline=overlapped, or {_OVERLAP}=none.", pipeline.overlap)
        )
    sleeps = ctx.config.actor_rollout_ref.rollout.free_cache_engine
    if sleeps and not own_pool_gpus(ctx.config.actor_rollout_ref.rollout):
        what = f"With {_OVERLAP} = {pipeline.overlap} the engine decodes while the trainer works."
        problems.append(ConfigIssue(f"{_ROLLOUT}.free_cache_engine", what, "Set it to false.", sleeps))
    return problems


def check_pools(ctx: Context) -> list[ConfigIssue]:
    """The engine's own GPUs, and the way of the weights to them."""
    rollout, sync = ctx.config.actor_rollout_ref.rollout, str(ctx.get(_SYNC))
    problems = [
        *at_least(_NODES, ctx.get(_NODES), 0, "0 is no node of the engine's own"),
        *at_least(_GPUS, ctx.get(_GPUS), 1, "a node of the engine's has a GPU"),
    ]
    if problems:
        return problems
    gpus = own_pool_gpus(rollout)
    if gpus == 0:
        if sync == SHARED_SYNC:
            return []
        what = "The engine shares the trainer's GPUs, where weights need no transport."
        return [ConfigIssue(_SYNC, what, f"Leave it at {SHARED_SYNC}, or set {_PRESET}.", sync)]
    if ctx.on_cpu and rollout.nnodes > 1:
        what = "The CPU platform runs on one machine."
        problems.append(ConfigIssue(_NODES, what, "Set it to 1.", rollout.nnodes))
    return problems + _check_sync(ctx, sync)


def _check_sync(ctx: Context, sync: str) -> list[ConfigIssue]:
    """The transport of weights between two pools: known where the workers look for it."""
    module = ctx.get(_MODULE)
    if sync == SHARED_SYNC:
        what = f"The engine has GPUs of its own ({_NODES} = {ctx.get(_NODES)}): weights must travel."
        return [ConfigIssue(_SYNC, what, f"Set {_PRESET}.", sync)]
    if ctx.on_cpu:
        if sync != CPU_SYNC:
            what = "This weight sync does not run with trainer.device = cpu."
            return [ConfigIssue(_SYNC, what, f"Set {_PRESET}, which chooses {CPU_SYNC}.", sync)]
        if module != CPU_SYNC_MODULE:
            what = f"{_SYNC} = {CPU_SYNC} is known to the workers only if they import its module."
            return [ConfigIssue(_MODULE, what, f"Set {_PRESET}, or {_MODULE}={CPU_SYNC_MODULE}.", module)]
        return []
    if sync == CPU_SYNC:
        what = f"This weight sync does not run with trainer.device = {ctx.get('trainer.device')}."
        return [ConfigIssue(_SYNC, what, f"Set {_PRESET}, which chooses {GPU_SYNC}.", sync)]
    # A module of the user's may register a weight sync of its own.
    return [] if module else one_of(_SYNC, sync, [name for name in weight_syncs() if name != SHARED_SYNC])
