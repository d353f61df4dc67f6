"""Checks of the loss: its mode, how it is averaged, clipping, and the reference policy's KL term."""

from __future__ import annotations

from typing import Any

from marsrl_verl.config.batching import plan_batch
from marsrl_verl.config.checks.context import Context, one_of
from marsrl_verl.config.checks.upstream import changed
from marsrl_verl.config.upstream_names import LOSS_MEANS, policy_losses
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.issues import ConfigIssue

_ACTOR = "actor_rollout_ref.actor"
_CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
_KL = ("kl_loss_coef", "kl_loss_type")
_KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""What verl's `kl_penalty` computes; each also with `+` for the straight-through gradient."""

_FIXED_SCALE = "seq-mean-token-sum-norm"
_OWN_MEAN = {
    "geo_mean": "It takes the mean over the rows of a micro-batch, and rows that only fill up a batch count "
    "in it: the gradient would depend on how the update is cut."
}
"""Modes with a mean of their own, whatever `loss_agg_mode` says."""


def check_loss(ctx: Context) -> list[ConfigIssue]:
    """The policy loss and its mean."""
    return [*_check_mean(ctx), *_check_turn_mean(ctx), *_check_mode(ctx)]


def _check_mean(ctx: Context) -> list[ConfigIssue]:
    key, scale_key = f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.loss_scale_factor"
    value, scale = str(ctx.get(key)), ctx.get(scale_key)
    if value not in LOSS_MEANS:
        return one_of(key, value, LOSS_MEANS)
    if value == _FIXED_SCALE and (scale is None or scale <= 0):
        what = (
            "Without a number verl divides by a micro-batch's longest response, which changes with the cut."
        )
        fix = f"Set {scale_key} to the longest response in tokens, or use seq-mean-token-sum."
        return [ConfigIssue(scale_key, what, fix, scale)]
    if value != _FIXED_SCALE and scale is not None:
        what = f"Only {key}={_FIXED_SCALE} divides by it."
        return [ConfigIssue(scale_key, what, "Leave it out.", scale)]
    return []


def _check_turn_mean(ctx: Context) -> list[ConfigIssue]:
    mean = ctx.settings.training.loss_mean
    if mean is None:
        return []
    what = f"The losses are averaged by marsrl.training.loss_mean = {mean}."
    return [
        ConfigIssue(key, what, "Leave it out, or set marsrl.training.loss_mean=null.", value)
        for key, value in changed(ctx, _ACTOR, ("loss_agg_mode",))
    ]


def _check_mode(ctx: Context) -> list[ConfigIssue]:
    key = f"{_ACTOR}.policy_loss.loss_mode"
    own = ctx.method.loss(ctx.settings.algo).name
    if own is not None:
        what = f"The method {ctx.settings.algo.name} has a policy loss of its own, {own}."
        mode_changed = changed(ctx, f"{_ACTOR}.policy_loss", ("loss_mode",))
        return [ConfigIssue(key, what, "Leave it out.", value) for key, value in mode_changed]
    mode = str(ctx.get(key))
    known = policy_losses()
    if mode not in known:
        # A module of the user's may register a loss of its own in the workers.
        return [] if ctx.get("actor_rollout_ref.model.external_lib") else one_of(key, mode, known)
    if mode in _OWN_MEAN:
        return [ConfigIssue(key, _OWN_MEAN[mode], "Use vanilla, or another loss of single tokens.", mode)]
    if mode == "bypass_mode":
        what = "It takes the sampler's log-probabilities for the old ones, which the trainer recomputes."
        return [ConfigIssue(key, what, "Use vanilla.", mode)]
    beta_key = f"{_ACTOR}.policy_loss.dro_beta"
    beta = ctx.get(beta_key)
    if mode == "dro" and (beta is None or beta <= 0):
        return [ConfigIssue(beta_key, "The loss dro needs a number above 0.", f"Set {beta_key}=0.1.", beta)]
    return []


def check_clip(ctx: Context) -> list[ConfigIssue]:
    """Clip ranges that verl refuses or that can never be reached."""
    actor = ctx.config.actor_rollout_ref.actor
    if actor.clip_ratio_c <= 1.0:
        key = f"{_ACTOR}.clip_ratio_c"
        return [
            ConfigIssue(key, "verl's loss expects a number above 1.", "3.0 is the default.", ctx.get(key))
        ]
    pipeline, mode = ctx.settings.pipeline, ctx.settings.off_policy.mode
    several = plan_batch(ctx.config, ctx.settings).updates > 1
    # In sequential mode all of a step's tokens are of the weights that record their log-probabilities.
    stale = mode is OffPolicyMode.RECORDED and pipeline.mode is not Mode.SEQUENTIAL
    own_ratio = mode is OffPolicyMode.SAIS or stale
    own_loss = ctx.method.loss(ctx.settings.algo).name is not None or actor.policy_loss.loss_mode != "vanilla"
    if several or int(actor.ppo_epochs) > 1 or own_ratio or own_loss:
        return []
    return [
        ConfigIssue(
            key,
            "With one update per step the importance ratio is exactly 1, so nothing is ever clipped.",
            "Leave it out, or raise marsrl.pipeline.updates_per_step (or set samples_per_update) or "
            "actor_rollout_ref.actor.ppo_epochs, or set marsrl.off_policy.mode=sais.",
            value,
        )
        for key, value in changed(ctx, _ACTOR, _CLIPS)
        if value != ctx.method.preset_clips.get(key.rpartition(".")[2])
    ]


def check_kl(ctx: Context) -> list[ConfigIssue]:
    """The KL term: settings without it, or what its reference policy needs."""
    if ctx.config.actor_rollout_ref.actor.use_kl_loss:
        return _check_reference(ctx)
    return [
        ConfigIssue(
            key,
            "The KL term is switched off (actor_rollout_ref.actor.use_kl_loss = false).",
            "Leave it out, or set actor_rollout_ref.actor.use_kl_loss=true.",
            value,
        )
        for key, value in changed(ctx, _ACTOR, _KL)
    ]


def _check_reference(ctx: Context) -> list[ConfigIssue]:
    key = f"{_ACTOR}.use_kl_loss"
    if ctx.on_cpu:
        # FSDP2 keeps a frozen model in pinned memory, which only a machine with an accelerator has.
        what = "The reference policy of the KL term runs on GPUs only: it lies in pinned memory."
        return [ConfigIssue(key, what, "Leave it out here, or use a GPU cluster.", True)]
    type_key = f"{_ACTOR}.kl_loss_type"
    kind = str(ctx.get(type_key))
    problems = one_of(type_key, kind.removesuffix("+"), _KL_TYPES)
    return problems + _check_reference_rows(ctx)


def _check_reference_rows(ctx: Context) -> list[ConfigIssue]:
    """The reference policy cuts the rows that the actor cuts."""
    actor = ctx.config.actor_rollout_ref.actor
    ref = "actor_rollout_ref.ref"
    wanted: dict[str, Any] = {f"{ref}.log_prob_use_dynamic_bsz": actor.use_dynamic_bsz}
    if not actor.use_dynamic_bsz:
        wanted[f"{ref}.log_prob_micro_batch_size_per_gpu"] = actor.ppo_micro_batch_size_per_gpu
        wanted[f"{ref}.log_prob_micro_batch_size"] = None
    return [
        ConfigIssue(
            key,
            "The reference policy reads the rows that the update reads, in the same micro-batches.",
            f"Set it to {'null' if value is None else str(value).lower()}.",
            ctx.get(key),
        )
        for key, value in wanted.items()
        if ctx.get(key) != value
    ]
