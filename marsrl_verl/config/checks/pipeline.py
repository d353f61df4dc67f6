"""Checks of workflows, engines on GPUs of their own, off-policy correction and shared prefixes."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.attention.layer_kinds import FULL, layer_kinds
from marsrl_verl.config.checks.context import Context, check_choice
from marsrl_verl.config.checks.refused import refuses
from marsrl_verl.config.model_shapes import has_experts
from marsrl_verl.config.models import models
from marsrl_verl.config.pools import CPU_SYNC, SHARED_SYNC, own_pool_gpus
from marsrl_verl.config.upstream_names import weight_syncs
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.declaration import UNCUT
from marsrl_verl.settings.imports import source_of
from marsrl_verl.settings.issues import ConfigIssue

_OFF_POLICY = "marsrl.off_policy.mode"
_SEGMENTS, _MIN_GROUP = "marsrl.pipeline.max_segments", "marsrl.pipeline.min_group"
_SYNC, _MODEL = "actor_rollout_ref.rollout.checkpoint_engine", "actor_rollout_ref.model.path"


def check_rollouts(ctx: Context) -> Iterator[ConfigIssue]:
    """The method's workflows: whether they are there, and go with segments and parts of groups."""
    pipeline, name = ctx.settings.pipeline, ctx.settings.algo.name
    for program in dict.fromkeys(stage.workflow for stage in ctx.method.stages(ctx.settings.algo)):
        try:
            cls = find_workflow(program)
        except ValueError as error:
            what = f"Its workflows can't all be used: {error}."
            fix = f"Correct {source_of(ctx.method, program)} (`Stage.rollout`)."
            yield ConfigIssue("marsrl.algo.name", what, fix, name)
            continue
        if pipeline.max_segments > 1 and not getattr(cls, "pauses", False):
            what = f"The workflow {program} of {name} can't pause (it does not say `pauses = True`)."
            yield ctx.issue(_SEGMENTS, what, f"Set {_SEGMENTS}=1, or let the workflow go on from its state.")
        if pipeline.min_group is not None and getattr(cls, "grows", False):
            what = (
                f"Groups of the workflow {program} of {name} grow from round to round: a part says "
                "nothing about the whole."
            )
            yield ctx.issue(_MIN_GROUP, what, f"Set {_MIN_GROUP}=null.")


def check_off_policy(ctx: Context) -> Iterator[ConfigIssue]:
    """The mode of the correction, and log-probabilities that can be compared: the engine's are of the
    distribution that it sampled from, at the roles' temperature; the trainer's always of the whole
    vocabulary."""
    mode = ctx.settings.off_policy.mode
    yield from refuses("off_policy")(ctx)
    if ctx.get("actor_rollout_ref.rollout.logprobs_mode") not in (None, "processed_logprobs"):
        return
    if mode is not OffPolicyMode.POIS:
        what = (
            "The engine's log-probabilities are those after the cut, the trainer's before it, so the ratios "
            f"that {_OFF_POLICY}={mode} is made of would be wrong."
        )
        for role, one in ctx.settings.roles.items():
            for name in one.cuts if role in ctx.settings.cut_roles else ():
                fix = f"Set it to {UNCUT[name]:g}, or {_OFF_POLICY}=pois."
                yield ctx.issue(f"marsrl.roles.{role}.{name}", what, fix)
    elif str(ctx.raw["marsrl"]["off_policy"]["mode"]).startswith("${marsrl.off_policy_mode:"):
        held = sorted(ctx.settings.cut_roles | ctx.traits.grammar_roles)
        paths = models(ctx.config.actor_rollout_ref.rollout).values() or [ctx.get(_MODEL)]
        if held and any(map(has_experts, paths)):
            ctx.warnings.append(
                "the model has experts, which engine and trainer may choose otherwise. "
                f"{_OFF_POLICY}=tis can't correct that, so it is pois: {', '.join(held)} sampled from a part "
                "of the vocabulary (top_p, top_k, a grammar), where log-probabilities can't be compared"
            )


def check_pools(ctx: Context) -> Iterator[ConfigIssue]:
    """The engine's own GPUs, and the transport of weights to them, known where the workers look for it."""
    yield from refuses("pools")(ctx)
    sync, module = str(ctx.get(f"{_SYNC}.backend")), ctx.get(f"{_SYNC}.custom_backend_module")
    apart = own_pool_gpus(ctx.config.actor_rollout_ref.rollout)
    # A module of the user's may register a weight sync of its own.
    if apart and not ctx.on_cpu and not module and sync not in (SHARED_SYNC, CPU_SYNC):
        yield from check_choice(
            f"{_SYNC}.backend", sync, [one for one in weight_syncs() if one != SHARED_SYNC]
        )


def check_share_prefixes(ctx: Context) -> Iterator[ConfigIssue]:
    """Checks the requirements of a pass over a prefix tree."""
    yield from refuses("shared_prefixes")(ctx)
    if not ctx.settings.training.share_prefixes:
        return
    if others := layer_kinds(ctx.read_model_config() or {}) - {FULL}:
        kinds = ", ".join(sorted(others))
        what = f"The model has layers of {kinds}, for which there is no mask of a prefix tree."
        yield ctx.issue("marsrl.training.share_prefixes", what, "Set it to false (training=separate_rows).")
