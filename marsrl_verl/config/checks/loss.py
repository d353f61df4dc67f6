"""Checks of the loss: its mode, how it is averaged, clipping, and KL in the loss and in the rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator

from marsrl_verl.config.batching import plan_batch
from marsrl_verl.config.checks.context import Context, check_choice
from marsrl_verl.config.checks.upstream import changed
from marsrl_verl.config.upstream_names import LOSS_MEANS, policy_losses
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.rows import KL_PENALTIES, LOSS_WEIGHTS, REF_LOG_PROBS, STEP_COLUMNS
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.core.sequence import TURN
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.issues import ConfigIssue

_ACTOR = "actor_rollout_ref.actor"
_CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
_KL = ("kl_loss_coef", "kl_loss_type")
_ALGORITHM = "algorithm"
_IN_REWARD = f"{_ALGORITHM}.use_kl_in_reward"
_ADAPTS = ("horizon", "target_kl")
_CONTROL = ("type", "kl_coef", *_ADAPTS)
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
        if not ctx.traits.notes_turns:
            what = f"It averages over turns, and the rollouts of {ctx.settings.algo.name} note none."
            fix = (
                f"Leave it out, and set {_ACTOR}.loss_agg_mode; a method whose rollouts do says so "
                "(Traits.notes_turns)."
            )
            yield ctx.issue("marsrl.training.loss_mean", what, fix)
    yield from _check_columns(ctx)
    own = ctx.method.Credit.loss(ctx.settings.algo).name
    if own is None:
        yield from _check_mode(ctx)
        return
    for key in changed(ctx, f"{_ACTOR}.policy_loss", ("loss_mode",)):
        what = f"The method {ctx.settings.algo.name} has a policy loss of its own, {own}."
        yield ctx.issue(key, what, "Leave it out.")


def _check_columns(ctx: Context) -> Iterator[ConfigIssue]:
    """What the method's policy loss reads, against what the run's steps have."""
    method, settings = ctx.method, ctx.settings
    of_kl = ctx.get(f"{_ACTOR}.use_kl_loss") or ctx.get(_IN_REWARD)
    lacking = {
        REF_LOG_PROBS: (not of_kl, f"{_ACTOR}.use_kl_loss", "true"),
        KL_PENALTIES: (not ctx.get(_IN_REWARD), _IN_REWARD, "true"),
        LOSS_WEIGHTS: (settings.off_policy.mode is not OffPolicyMode.TIS, "marsrl.off_policy.mode", "tis"),
    }
    noted = ctx.traits.annotations | ({TURN} if ctx.traits.notes_turns else frozenset())
    for name in method.Credit.loss(settings.algo).columns:
        what = f"The policy loss of {settings.algo.name} reads {name!r}"
        is_lacking, key, value = lacking.get(name, (False, "", ""))
        if is_lacking:
            yield ctx.issue(key, f"{what}, which the run's steps do not have.", f"Set it to {value}.")
        elif name not in STEP_COLUMNS | noted:
            has = f"which its rollouts and probes do not note ({', '.join(sorted(noted)) or 'nothing'})."
            fix = "Name it in Traits.annotations, or leave it out of LossSpec.columns."
            yield ctx.issue("marsrl.algo.name", f"{what}, {has}", fix)


def _check_mean(ctx: Context) -> Iterator[ConfigIssue]:
    key, scale_key = f"{_ACTOR}.loss_agg_mode", f"{_ACTOR}.loss_scale_factor"
    scale, fixed = ctx.get(scale_key), ctx.get(key) == _FIXED_SCALE
    yield from check_choice(key, str(ctx.get(key)), LOSS_MEANS)
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
        yield from check_choice(key, mode, policy_losses())


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
    spec = ctx.method.Credit.loss(ctx.settings.algo)
    if several or int(actor.ppo_epochs) > 1 or own_ratio:
        narrowest = min(float(actor.clip_ratio_low), float(actor.clip_ratio_high))
        if spec.widest_clip is not None and narrowest > spec.widest_clip:
            ctx.warnings.append(
                f"With {spec.name} as it is set, a ratio is hardly ever further from 1 than "
                f"{spec.widest_clip:g}, and the clip range is {narrowest:g}: hardly anything is clipped. Set "
                f"{_ACTOR}.clip_ratio_low and clip_ratio_high to what is to act, 3e-4 to 1e-2."
            )
        _warn_of_bound(ctx, spec)
        return
    what = "With one update per step the importance ratio is exactly 1, so nothing is ever clipped."
    otherwise = (
        "raise marsrl.pipeline.updates_per_step (or set samples_per_update) or "
        "actor_rollout_ref.actor.ppo_epochs, or set marsrl.off_policy.mode=sais."
    )
    if spec.name is not None or actor.policy_loss.loss_mode != "vanilla":
        if spec.clips:  # what its settings do beside the clip is its own matter
            ctx.warnings.append(f"{what} For a clip that can act, {otherwise}")
        return
    fix = f"Leave it out, or {otherwise}"
    for key in changed(ctx, _ACTOR, _CLIPS):
        if not _is_presets(ctx, key):
            yield ctx.issue(key, what, fix)


def _warn_of_bound(ctx: Context, spec: LossSpec) -> None:
    """A bound of ratios that the clip (advantages above 0) and the dual clip (below) leave nothing to do."""
    if spec.ratio_bound is None:
        return
    (key, bound), actor = spec.ratio_bound, ctx.config.actor_rollout_ref.actor
    clipped, dual = 1 + float(actor.clip_ratio_high), float(actor.clip_ratio_c)
    largest = max(clipped, dual)
    if bound >= largest:
        ctx.warnings.append(
            f"{key} bounds ratios at {bound:.3g}, but they are clipped at {clipped:g} and {dual:g} "
            f"(clip_ratio_high, clip_ratio_c) before: it changes nothing. Set it below log({largest:g}) = "
            f"{math.log(largest):.2g}, or to null."
        )


def _is_presets(ctx: Context, key: str) -> bool:
    """Whether a setting has the value of the method's presets."""
    value = ctx.settings.algo.preset_values.get(key)
    return value is not None and ctx.get(key) == value


def check_kl(ctx: Context) -> Iterator[ConfigIssue]:
    """KL in the loss and in the rewards: settings without them, and what their reference policy needs."""
    yield from _check_kl_loss(ctx)
    yield from _check_kl_in_reward(ctx)
    actor = ctx.config.actor_rollout_ref.actor
    if not (actor.use_kl_loss or ctx.get(_IN_REWARD)):
        return
    sizes = {"use_dynamic_bsz": actor.use_dynamic_bsz}
    if not actor.use_dynamic_bsz:
        sizes |= {"micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu, "micro_batch_size": None}
    what = "The reference policy reads the rows that the update reads, in the same micro-batches."
    for name, value in sizes.items():
        key = f"actor_rollout_ref.ref.log_prob_{name}"
        if ctx.get(key) != value:
            yield ctx.issue(key, what, f"Set it to {'null' if value is None else str(value).lower()}.")


def _check_kl_loss(ctx: Context) -> Iterator[ConfigIssue]:
    switch, key = f"{_ACTOR}.use_kl_loss", f"{_ACTOR}.kl_loss_type"
    if not ctx.get(switch):
        what = f"The KL term is switched off ({switch} = false)."
        for other in changed(ctx, _ACTOR, _KL):
            yield ctx.issue(other, what, f"Leave it out, or set {switch}=true.")
        return
    yield from check_choice(key, str(ctx.get(key)).removesuffix("+"), _KL_TYPES)
    yield from _check_coefficient(ctx, f"{_ACTOR}.kl_loss_coef", switch)


def _check_kl_in_reward(ctx: Context) -> Iterator[ConfigIssue]:
    kind, control = f"{_ALGORITHM}.kl_penalty", f"{_ALGORITHM}.kl_ctrl"
    if not ctx.get(_IN_REWARD):
        what = f"Rewards lose nothing for KL ({_IN_REWARD} = false)."
        names = [*changed(ctx, _ALGORITHM, ("kl_penalty",)), *changed(ctx, control, _CONTROL)]
        for key in names:
            if not _is_presets(ctx, key):
                yield ctx.issue(key, what, f"Leave it out, or set {_IN_REWARD}=true.")
        return
    if not ctx.method.Credit.counts_kl:
        what = f"The advantages of {ctx.settings.algo.name} do not count what a token's reward loses for KL."
        yield ctx.issue(_IN_REWARD, what, f"Leave it out, or set {_ACTOR}.use_kl_loss=true.")
    if str(ctx.get(kind)).removesuffix("+") in _KL_TYPES and str(ctx.get(kind)).endswith("+"):
        what = "The + changes a gradient, and a reward has none."
        yield ctx.issue(kind, what, f"Set it to {str(ctx.get(kind)).removesuffix('+')}.")
    else:
        yield from check_choice(kind, str(ctx.get(kind)), _KL_TYPES)
    yield from _check_coefficient(ctx, f"{control}.kl_coef", _IN_REWARD)
    if ctx.get(f"{control}.type") == "fixed":
        for key in changed(ctx, control, _ADAPTS):
            what = f"It has no effect with {control}.type = fixed."
            yield ctx.issue(key, what, f"Leave it out, or set {control}.type=adaptive.")


def _check_coefficient(ctx: Context, key: str, switch: str) -> Iterator[ConfigIssue]:
    if ctx.get(key) == 0:
        what = "With a coefficient of 0 the reference policy would be computed for nothing."
        yield ctx.issue(key, what, f"Set it above 0, or set {switch}=false.")
