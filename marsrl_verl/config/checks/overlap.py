"""Checks of overlapped generation and of engines on GPUs of their own."""

from __future__ import annotations

from marsrl_verl.algos.choices import Overlap
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.method import one_of
from marsrl_verl.config.errors import Problem
from marsrl_verl.config.pools import CPU_SYNC, GPU_SYNC, SHARED_SYNC, own_pool_gpus
from marsrl_verl.core.scheduler import Mode

_OVERLAP = "marsrl.pipeline.overlap"
_ROLLOUT = "actor_rollout_ref.rollout"
_NODES, _GPUS = f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node"
_SYNC = f"{_ROLLOUT}.checkpoint_engine.backend"
_PRESET = "pipeline=overlapped_two_pools"


def check_overlap(ctx: Context) -> list[Problem]:
    """Whether generation may run while the trainer works."""
    pipeline = ctx.settings.pipeline
    problems = one_of(_OVERLAP, pipeline.overlap, [one.value for one in Overlap])
    if problems or pipeline.overlap == Overlap.NONE.value:
        return problems
    if pipeline.mode == Mode.SEQUENTIAL.value:
        what = "In sequential mode the rounds of a step follow from each other, so none can be decoded ahead."
        problems.append(
            Problem(_OVERLAP, what, f"Set pipeline=overlapped, or {_OVERLAP}=none.", pipeline.overlap)
        )
    sleeps = ctx.config.actor_rollout_ref.rollout.free_cache_engine
    if sleeps and not own_pool_gpus(ctx.config.actor_rollout_ref.rollout):
        what = f"With {_OVERLAP} = {pipeline.overlap} the engine decodes while the trainer works."
        problems.append(Problem(f"{_ROLLOUT}.free_cache_engine", what, "Set it to false.", sleeps))
    return problems


def check_pools(ctx: Context) -> list[Problem]:
    """The engine's own GPUs, and the way of the weights to them."""
    rollout, sync = ctx.config.actor_rollout_ref.rollout, str(ctx.get(_SYNC))
    problems: list[Problem] = []
    for key, least in ((_NODES, 0), (_GPUS, 1)):
        value = ctx.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            problems.append(Problem(key, f"Expected a whole number of at least {least}.", "Mend it.", value))
    if problems:
        return problems
    gpus = own_pool_gpus(rollout)
    if gpus == 0:
        if sync == SHARED_SYNC:
            return []
        what = "The engine shares the trainer's GPUs, where weights need no transport."
        return [Problem(_SYNC, what, f"Leave it at {SHARED_SYNC}, or set {_PRESET}.", sync)]
    if ctx.on_cpu and rollout.nnodes > 1:
        what = "The CPU platform runs on one machine."
        problems.append(Problem(_NODES, what, "Set it to 1.", rollout.nnodes))
    if sync == SHARED_SYNC:
        what = f"The engine has GPUs of its own ({_NODES} = {rollout.nnodes}): weights must travel."
        fix = f"Set {_PRESET}, or {_SYNC}={CPU_SYNC if ctx.on_cpu else GPU_SYNC}."
        problems.append(Problem(_SYNC, what, fix, sync))
    elif ctx.on_cpu != (sync == CPU_SYNC):
        what = f"This weight sync does not run with trainer.device = {ctx.get('trainer.device')}."
        problems.append(Problem(_SYNC, what, f"Set it to {CPU_SYNC if ctx.on_cpu else GPU_SYNC}.", sync))
    return problems
