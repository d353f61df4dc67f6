"""Checks of the loss: its mode, how it is averaged, clipping, and KL in the loss and in the rewards."""

from __future__ import annotations

import math
from collections.abc import Iterator

from marsrl_verl.config.batching import plan_batch
from marsrl_verl.config.checks.context import Context, check_choice
from marsrl_verl.config.checks.refused import refuses
from marsrl_verl.config.checks.upstream import changed, changed_beyond_presets
from marsrl_verl.config.upstream_names import LOSS_MEANS, policy_losses
from marsrl_verl.core.credit import LossSpec
from marsrl_verl.core.rows import KL_PENALTIES, LOSS_WEIGHTS, REF_LOG_PROBS, STEP_COLUMNS
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.core.sequence import TURN
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.imports import source_of
from marsrl_verl.settings.issues import ConfigIssue

_ACTOR = "actor_rollout_ref.actor"
_CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
_IN_REWARD = "algorithm.use_kl_in_reward"
_KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""KL estimators of verl's `kl_penalty`; each also with `+` for the straight-through gradient."""
_LOSS_MODE = f"{_ACTOR}.policy_loss.loss_mode"


def check_loss(ctx: Context) -> Iterator[ConfigIssue]:
    """The mean of the policy loss, and its mode."""
    key = f"{_ACTOR}.loss_agg_mode"
    yield from check_choice(key, str(ctx.get(key)), LOSS_MEANS)
    yield from refuses("loss_mean")(ctx)
    yield from _check_columns(ctx)
    own = ctx.method.Credit.loss(ctx.settings.algo).name
    if own is None:
        yield from _check_mode(ctx)
    elif changed(ctx, _LOSS_MODE):
        what = f"The method {ctx.settings.algo.name} has a policy loss of its own, {own}."
        yield ctx.issue(_LOSS_MODE, what, "Leave it out.")


def _check_columns(ctx: Context) -> Iterator[ConfigIssue]:
    """Checks that the run's steps have the columns that the method's policy loss reads."""
    settings, in_loss, in_reward = ctx.settings, f"{_ACTOR}.use_kl_loss", ctx.get(_IN_REWARD)
    lacking = {
        REF_LOG_PROBS: (not (ctx.get(in_loss) or in_reward), in_loss, "true"),
        KL_PENALTIES: (not in_reward, _IN_REWARD, "true"),
        LOSS_WEIGHTS: (settings.off_policy.mode is not OffPolicyMode.TIS, "marsrl.off_policy.mode", "tis"),
    }
    noted = ctx.traits.annotations | ({TURN} if ctx.traits.has_turn_ids else frozenset())
    for name in ctx.method.Credit.loss(settings.algo).columns:
        what = f"The policy loss of {settings.algo.name} reads {name!r}"
        is_lacking, key, value = lacking.get(name, (False, "", ""))
        if is_lacking:
            yield ctx.issue(key, f"{what}, which the run's steps do not have.", f"Set it to {value}.")
        elif name not in STEP_COLUMNS | noted:
            has = f"which its rollouts and probes do not note ({', '.join(sorted(noted)) or 'nothing'})."
            place = source_of(ctx.method.Credit, name)
            fix = f"Name it in Traits.annotations, or leave it out of LossSpec.columns ({place})."
            yield ctx.issue("marsrl.algo.name", f"{what}, {has}", fix)


def _check_mode(ctx: Context) -> Iterator[ConfigIssue]:
    mode = str(ctx.get(_LOSS_MODE))
    if found := list(refuses("verls_loss")(ctx)):
        yield from found
    elif not ctx.get("actor_rollout_ref.model.external_lib"):  # which may register a loss in the workers
        yield from check_choice(_LOSS_MODE, mode, policy_losses())


def check_clip(ctx: Context) -> Iterator[ConfigIssue]:
    """Clip ranges that can never be reached."""
    actor, mode = ctx.config.actor_rollout_ref.actor, ctx.settings.off_policy.mode
    several = plan_batch(ctx.config, ctx.settings).updates > 1
    # In sequential mode all of a step's tokens are of the weights that record their log-probabilities.
    stale = mode is OffPolicyMode.RECORDED and ctx.settings.pipeline.mode is not Mode.SEQUENTIAL
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
    for key in (f"{_ACTOR}.{name}" for name in _CLIPS):
        if changed_beyond_presets(ctx, key):
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


def check_kl(ctx: Context) -> Iterator[ConfigIssue]:
    """KL in the loss and in the rewards: settings without them, and what their reference policy needs."""
    yield from refuses("kl")(ctx)
    actor, in_reward = ctx.config.actor_rollout_ref.actor, ctx.get(_IN_REWARD)
    if actor.use_kl_loss:
        key = f"{_ACTOR}.kl_loss_type"
        yield from check_choice(key, str(ctx.get(key)).removesuffix("+"), _KL_TYPES)
    if in_reward:
        yield from _check_penalty("algorithm.kl_penalty", str(ctx.get("algorithm.kl_penalty")))
    if not (actor.use_kl_loss or in_reward):
        return
    sizes = {"use_dynamic_bsz": actor.use_dynamic_bsz}
    if not actor.use_dynamic_bsz:
        sizes |= {"micro_batch_size_per_gpu": actor.ppo_micro_batch_size_per_gpu, "micro_batch_size": None}
    what = "The reference policy reads the rows that the update reads, in the same micro-batches."
    for name, value in sizes.items():
        key = f"actor_rollout_ref.ref.log_prob_{name}"
        if ctx.get(key) != value:
            yield ctx.issue(key, what, f"Set it to {'null' if value is None else str(value).lower()}.")


def _check_penalty(key: str, kind: str) -> list[ConfigIssue]:
    plain = kind.removesuffix("+")
    if plain == kind or plain not in _KL_TYPES:
        return check_choice(key, kind, _KL_TYPES)
    what = "The + changes a gradient, and a reward has none."
    return [ConfigIssue(key, what, f"Set it to {plain}.", kind)]
