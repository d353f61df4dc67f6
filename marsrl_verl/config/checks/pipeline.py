"""Checks of segments, partial groups, off-policy correction and the masking of mastered tokens."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.schema import PipelineConfig
from marsrl_verl.core.method import Method
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.issues import ConfigIssue

_SEGMENTS = "marsrl.pipeline.max_segments"
_MIN_GROUP = "marsrl.pipeline.min_group"
_MASTERED = "marsrl.algo.mastered_tokens"


def check_segments(ctx: Context) -> list[ConfigIssue]:
    """Segments and the groups that they cut."""
    pipeline, size = ctx.settings.pipeline, ctx.settings.algo.group_size
    problems = _check_staleness(pipeline)
    if pipeline.max_segments > 1 and pipeline.mode is Mode.SEQUENTIAL:
        what = "In sequential mode a step waits for all of a response, so segments would only cost time."
        fix = f"Set pipeline=pipelined, or {_SEGMENTS}=1."
        problems.append(ConfigIssue(_SEGMENTS, what, fix, pipeline.max_segments))
    if pipeline.min_group is None:
        return problems
    if pipeline.max_segments == 1:
        what = "Without segments all samples of a group end in one round, so no group trains in parts."
        fix = f"Leave it out, or raise {_SEGMENTS}."
        problems.append(ConfigIssue(_MIN_GROUP, what, fix, pipeline.min_group))
    if pipeline.min_group > size:
        what = f"A group has {size} samples (marsrl.algo.group_size)."
        problems.append(ConfigIssue(_MIN_GROUP, what, f"Set it to at most {size}.", pipeline.min_group))
    return problems


def _check_staleness(pipeline: PipelineConfig) -> list[ConfigIssue]:
    key, value = "marsrl.pipeline.max_input_staleness", pipeline.max_input_staleness
    if value is None:
        return []
    if pipeline.step_prompt_budget is None or pipeline.mode is Mode.SEQUENTIAL:
        what = "Nothing waits longer than one step: every round decodes all inputs there are."
        fix = "Leave it out, or use pipeline=pipelined with marsrl.pipeline.step_prompt_budget."
        return [ConfigIssue(key, what, fix, value)]
    return []


def check_off_policy(ctx: Context) -> list[ConfigIssue]:
    """The mode of the correction and its threshold."""
    settings, key = ctx.settings.off_policy, "marsrl.off_policy.tis_threshold"
    problems: list[ConfigIssue] = []
    if settings.mode is OffPolicyMode.RECORDED and not ctx.method.records_log_probs:
        what = f"{ctx.settings.algo.name} records no log-probabilities of the trainer when samples come back."
        fix = "Use pois, sais or tis."
        problems.append(ConfigIssue("marsrl.off_policy.mode", what, fix, settings.mode))
    if settings.changed("tis_threshold") and settings.mode is not OffPolicyMode.TIS:
        what = f"It has no effect with marsrl.off_policy.mode = {settings.mode}."
        fix = "Leave it out, or set marsrl.off_policy.mode=tis."
        problems.append(ConfigIssue(key, what, fix, settings.tis_threshold))
    return problems + _check_sampled_log_probs(ctx)


def _check_sampled_log_probs(ctx: Context) -> list[ConfigIssue]:
    """The engine's log-probabilities are of the distribution it sampled from, at the roles' temperature; the
    trainer's are always of the whole vocabulary."""
    key = "actor_rollout_ref.rollout.logprobs_mode"
    found = ctx.get(key)
    if found is not None and found != "processed_logprobs":
        what = (
            "The engine's log-probabilities have to be those at the sampling temperature, as the trainer's."
        )
        return [ConfigIssue(key, what, "Leave it out: it is processed_logprobs.", found)]
    mode = ctx.settings.off_policy.mode
    if mode is OffPolicyMode.POIS:
        return []
    problems = []
    for role, one in ctx.settings.roles.items():
        for name, value, whole in (("top_p", one.top_p, 1.0), ("top_k", one.top_k, -1)):
            if value != whole:
                what = (
                    "The engine's log-probabilities are those after the cut, the trainer's before it, so the "
                    f"ratios that marsrl.off_policy.mode={mode} is made of would be wrong."
                )
                fix = f"Set it to {whole:g}, or marsrl.off_policy.mode=pois."
                problems.append(ConfigIssue(f"marsrl.roles.{role}.{name}", what, fix, value))
    return problems


def check_mastered_tokens(ctx: Context) -> list[ConfigIssue]:
    """Settings of a masking that is off, or that the method does not do."""
    settings = ctx.settings.algo.mastered_tokens
    if settings.enabled and ctx.method.masks is Method.masks:
        what = f"{ctx.settings.algo.name} leaves no token out of its loss (its class has no `masks`)."
        return [ConfigIssue(f"{_MASTERED}.enabled", what, "Leave it out.", True)]
    if settings.enabled:
        return []
    return [
        ConfigIssue(
            f"{_MASTERED}.{name}",
            f"It has no effect with {_MASTERED}.enabled = false.",
            f"Leave it out, or set {_MASTERED}.enabled=true.",
            getattr(settings, name),
        )
        for name in settings.changed()
    ]
