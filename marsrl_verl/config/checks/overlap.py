"""Checks of overlapped generation and of engines on GPUs of their own."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.config.checks.context import Context, check_choice
from marsrl_verl.config.pools import CPU_SYNC, CPU_SYNC_MODULE, GPU_SYNC, SHARED_SYNC, own_pool_gpus
from marsrl_verl.config.upstream_names import weight_syncs
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.settings.choices import Overlap
from marsrl_verl.settings.issues import ConfigIssue

_OVERLAP = "marsrl.pipeline.overlap"
_ROLLOUT = "actor_rollout_ref.rollout"
_NODES = f"{_ROLLOUT}.nnodes"
_SYNC = f"{_ROLLOUT}.checkpoint_engine.backend"
_MODULE = f"{_ROLLOUT}.checkpoint_engine.custom_backend_module"
_PRESET = "pipeline=overlapped_two_pools"


def check_overlap(ctx: Context) -> Iterator[ConfigIssue]:
    """Whether generation may run while the trainer works."""
    pipeline, rollout = ctx.settings.pipeline, ctx.config.actor_rollout_ref.rollout
    if pipeline.overlap is Overlap.NONE:
        return
    if pipeline.mode is Mode.SEQUENTIAL:
        what = "In sequential mode the rounds of a step follow from each other, so none can be decoded ahead."
        yield ctx.issue(_OVERLAP, what, f"Set pipeline=overlapped, or {_OVERLAP}=none.")
    if rollout.free_cache_engine and not own_pool_gpus(rollout):
        what = f"With {_OVERLAP} = {pipeline.overlap} the engine decodes while the trainer works."
        yield ctx.issue(f"{_ROLLOUT}.free_cache_engine", what, "Set it to false.")


def check_pools(ctx: Context) -> Iterator[ConfigIssue]:
    """The engine's own GPUs, and the transport of weights to them, known where the workers look for it."""
    rollout, sync, module = ctx.config.actor_rollout_ref.rollout, str(ctx.get(_SYNC)), ctx.get(_MODULE)
    device = f"This weight sync does not run with trainer.device = {ctx.get('trainer.device')}."
    if not own_pool_gpus(rollout):
        if sync != SHARED_SYNC:
            what = "The engine shares the trainer's GPUs, where weights need no transport."
            yield ctx.issue(_SYNC, what, f"Leave it at {SHARED_SYNC}, or set {_PRESET}.")
        return
    if ctx.on_cpu and rollout.nnodes > 1:
        yield ctx.issue(_NODES, "The CPU platform runs on one machine.", "Set it to 1.")
    if sync == SHARED_SYNC:
        what = f"The engine has GPUs of its own ({_NODES} = {rollout.nnodes}): weights must travel."
        yield ctx.issue(_SYNC, what, f"Set {_PRESET}.")
    elif ctx.on_cpu and sync != CPU_SYNC:
        yield ctx.issue(_SYNC, device, f"Set {_PRESET}, which chooses {CPU_SYNC}.")
    elif ctx.on_cpu and module != CPU_SYNC_MODULE:
        what = f"{_SYNC} = {CPU_SYNC} is known to the workers only if they import its module."
        yield ctx.issue(_MODULE, what, f"Set {_PRESET}, or {_MODULE}={CPU_SYNC_MODULE}.")
    elif sync == CPU_SYNC and not ctx.on_cpu:
        yield ctx.issue(_SYNC, device, f"Set {_PRESET}, which chooses {GPU_SYNC}.")
    elif not ctx.on_cpu and not module:  # a module of the user's may register a weight sync of its own
        yield from check_choice(_SYNC, sync, [name for name in weight_syncs() if name != SHARED_SYNC])
