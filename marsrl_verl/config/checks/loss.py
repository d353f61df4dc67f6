"""Checks of the loss: its mode, how it is averaged, clipping, and the reference policy's KL term."""

from __future__ import annotations

from collections.abc import Iterator

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

_BETA = f"{_ACTOR}.policy_loss.dro_beta"
_FIXED_SCALE = "seq-mean-token-sum-norm"
_OWN_MEAN = {
    "geo_mean": "It takes the mean over the rows of a micro-batch, and rows that only fill up a batch count "
    "in it: the gradient would depend on how the update is cut."
}
"""Modes with a mean of their own, whatever `loss_agg_mode` says."""


def check_loss(ctx: Context) -> Iterator[ConfigIssue]:
    """The mean of the policy loss, and its mode."""
    yield from _check_mean(ctx)
    if (mean := ctx.settings.training.loss_mean) is not None:
        for key in changed(ctx, _ACTOR, ("loss_agg_mode",)):
            what = f"The losses are averaged by marsrl.training.loss_mean = {mean}."
            yield ctx.issue(key, what, "Leave it out, or set marsrl.training.loss_mean=null.")
        if not ctx.method.notes_turns:
            what = f"It averages over turns, and the rollouts of {ctx.settings.algo.name} note none."
            fix = f"Leave it out, and set {_ACTOR}.loss_agg_mode; a method whose rollouts do has notes_turns."
            yield ctx.issue("marsrl.training.loss_mean", what, fix)
    own = ctx.method.loss(ctx.settings.algo).name
    if own is None:
        yield from _check_mode(ctx)
        return
    for key in changed(ctx, f"{_ACTOR}.policy_loss", ("loss_mode",)):
        what = f"The method {ctx.settings.algo.name} has a policy loss of its own, {own}."
        yield ctx.issue(key, what, "Leave it out.")


def _check_mean(ctx: Context) -> Iterator[ConfigIssue]:
    key, scale_key = f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.loss_scale_factor"
    scale, fixed = ctx.get(scale_key), ctx.get(key) == _FIXED_SCALE
    yield from one_of(key, str(ctx.get(key)), LOSS_MEANS)
    if fixed and (scale is None or scale <= 0):
        what = (
            "Without a number verl divides by a micro-batch's longest response, which changes with the cut."
        )
        fix = f"Set {scale_key} to the longest response in tokens, or use seq-mean-token-sum."
        yield ctx.issue(scale_key, what, fix)
    elif not fixed and scale is not None:
        yield ctx.issue(scale_key, f"Only {key}={_FIXED_SCALE} divides by it.", "Leave it out.")


def _check_mode(ctx: Context) -> Iterator[ConfigIssue]:
    key = f"{_ACTOR}.policy_loss.loss_mode"
    mode, beta = str(ctx.get(key)), ctx.get(_BETA)
    if mode in _OWN_MEAN:
        yield ctx.issue(key, _OWN_MEAN[mode], "Use vanilla, or another loss of single tokens.")
    elif mode == "bypass_mode":
        what = "It takes the sampler's log-probabilities for the old ones, which the trainer recomputes."
        yield ctx.issue(key, what, "Use vanilla.")
    elif mode == "dro" and (beta is None or beta <= 0):
        yield ctx.issue(_BETA, "The loss dro needs a number above 0.", f"Set {_BETA}=0.1.")
    elif not ctx.get("actor_rollout_ref.model.external_lib"):  # which may register a loss in the workers
        yield from one_of(key, mode, policy_losses())


def check_clip(ctx: Context) -> Iterator[ConfigIssue]:
    """Clip ranges that can never be reached."""
    actor, pipeline, mode = (
        ctx.config.actor_rollout_ref.actor,
        ctx.settings.pipeline,
        ctx.settings.off_policy.mode,
    )
    several = plan_batch(ctx.config, ctx.settings).updates > 1
    # In sequential mode all of a step's tokens are of the weights that record their log-probabilities.
    stale = mode is OffPolicyMode.RECORDED and pipeline.mode is not Mode.SEQUENTIAL
    own_ratio = mode is OffPolicyMode.SAIS or stale
    own_loss = ctx.method.loss(ctx.settings.algo).name is not None or actor.policy_loss.loss_mode != "vanilla"
    if several or int(actor.ppo_epochs) > 1 or own_ratio or own_loss:
        return
    what = "With one update per step the importance ratio is exactly 1, so nothing is ever clipped."
    fix = (
        "Leave it out, or raise marsrl.pipeline.updates_per_step (or set samples_per_update) or "
        "actor_rollout_ref.actor.ppo_epochs, or set marsrl.off_policy.mode=sais."
    )
    for key in changed(ctx, _ACTOR, _CLIPS):
        if ctx.get(key) != ctx.method.preset_clips.get(key.rpartition(".")[2]):
            yield ctx.issue(key, what, fix)


def check_kl(ctx: Context) -> Iterator[ConfigIssue]:
    """The KL term: settings without it, or what its reference policy needs."""
    actor = ctx.config.actor_rollout_ref.actor
    if not actor.use_kl_loss:
        what = f"The KL term is switched off ({_ACTOR}.use_kl_loss = false)."
        for key in changed(ctx, _ACTOR, _KL):
            yield ctx.issue(key, what, f"Leave it out, or set {_ACTOR}.use_kl_loss=true.")
        return
    if ctx.on_cpu:
        # FSDP2 keeps a frozen model in pinned memory, which only a machine with an accelerator has.
        what = "The reference policy of the KL term runs on GPUs only: it lies in pinned memory."
        yield ctx.issue(f"{_ACTOR}.use_kl_loss", what, "Leave it out here, or use a GPU cluster.")
        return
    key = f"{_ACTOR}.kl_loss_type"
    yield from one_of(key, str(ctx.get(key)).removesuffix("+"), _KL_TYPES)
    wanted = {"use_dynamic_bsz": actor.use_dynamic_bsz}
    if not actor.use_dynamic_bsz:
        wanted |= {"micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu, "micro_batch_size": None}
    what = "The reference policy reads the rows that the update reads, in the same micro-batches."
    for name, value in wanted.items():
        key = f"actor_rollout_ref.ref.log_prob_{name}"
        if ctx.get(key) != value:
            yield ctx.issue(key, what, f"Set it to {'null' if value is None else str(value).lower()}.")
