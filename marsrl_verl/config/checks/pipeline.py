"""Checks of segments, partial groups, off-policy correction and shared prefixes."""

from __future__ import annotations

from collections.abc import Iterator

from marsrl_verl.attention.layer_kinds import FULL, layer_kinds
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.model_shapes import has_experts
from marsrl_verl.config.models import models
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.rollout.runner import find_program
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.declaration import UNCUT
from marsrl_verl.settings.issues import ConfigIssue

_PIPELINE, _OFF_POLICY = "marsrl.pipeline", "marsrl.off_policy.mode"
_SEGMENTS, _MIN_GROUP = f"{_PIPELINE}.max_segments", f"{_PIPELINE}.min_group"
_LOG_PROBS = "actor_rollout_ref.rollout.logprobs_mode"
_SHARE = "marsrl.training.share_prefixes"
_ACTOR, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
_ATTENTION = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention for which there is a mask of a prefix tree; flex attention stands in for flash attention."""


def check_segments(ctx: Context) -> Iterator[ConfigIssue]:
    """Segments, the groups that they cut, and requests that wait."""
    pipeline, size = ctx.settings.pipeline, ctx.settings.algo.group_size
    sequential = pipeline.mode is Mode.SEQUENTIAL
    if pipeline.max_request_staleness is not None and (pipeline.step_prompt_budget is None or sequential):
        what = "Nothing waits longer than one step: every round decodes all requests there are."
        fix = f"Leave it out, or use pipeline=pipelined with {_PIPELINE}.step_prompt_budget."
        yield ctx.issue(f"{_PIPELINE}.max_request_staleness", what, fix)
    if pipeline.max_segments > 1 and sequential:
        what = "In sequential mode a step waits for all of a response, so segments would only cost time."
        yield ctx.issue(_SEGMENTS, what, f"Set pipeline=pipelined, or {_SEGMENTS}=1.")
    if pipeline.min_group is not None and pipeline.max_segments == 1:
        what = "Without segments all samples of a group end in one round, so no group trains in parts."
        yield ctx.issue(_MIN_GROUP, what, f"Leave it out, or raise {_SEGMENTS}.")
    if pipeline.min_group is not None and pipeline.min_group > size:
        what = f"A group has {size} samples (marsrl.algo.group_size)."
        yield ctx.issue(_MIN_GROUP, what, f"Set it to at most {size}.")


def check_rollouts(ctx: Context) -> Iterator[ConfigIssue]:
    """The method's rollout programs: whether they are there, and go with segments and parts of groups."""
    pipeline, name = ctx.settings.pipeline, ctx.settings.algo.name
    for program in dict.fromkeys(stage.program for stage in ctx.method.stages(ctx.settings.algo)):
        try:
            cls = find_program(program)
        except ValueError as error:
            what = f"Its rollout programs can't all be used: {error}."
            yield ConfigIssue("marsrl.algo.name", what, "Correct `Stage.rollout` in its class.", name)
            continue
        if pipeline.max_segments > 1 and not getattr(cls, "pauses", False):
            what = f"The rollout program {program} of {name} can't pause (it does not say `pauses = True`)."
            yield ctx.issue(_SEGMENTS, what, f"Set {_SEGMENTS}=1, or let the program go on from its state.")
        if pipeline.min_group is not None and getattr(cls, "grows", False):
            what = (
                f"Groups of the rollout program {program} of {name} grow from round to round: a part says "
                "nothing about the whole."
            )
            yield ctx.issue(_MIN_GROUP, what, f"Set {_MIN_GROUP}=null.")


def check_off_policy(ctx: Context) -> Iterator[ConfigIssue]:
    """The mode of the correction, and log-probabilities that can be compared: the engine's are of the
    distribution that it sampled from, at the roles' temperature; the trainer's always of the whole
    vocabulary."""
    mode = ctx.settings.off_policy.mode
    if mode is OffPolicyMode.RECORDED and not ctx.traits.records_log_probs:
        what = f"{ctx.settings.algo.name} records no log-probabilities of the trainer when samples come back."
        yield ctx.issue(_OFF_POLICY, what, "Use pois, sais or tis.")
    if ctx.get(_LOG_PROBS) not in (None, "processed_logprobs"):
        what = (
            "The engine's log-probabilities have to be those at the sampling temperature, as the trainer's."
        )
        yield ctx.issue(_LOG_PROBS, what, "Leave it out: it is processed_logprobs.")
    elif mode is not OffPolicyMode.POIS:
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
        paths = models(ctx.config.actor_rollout_ref.rollout).values() or [ctx.get(f"{_MODEL}.path")]
        if held and any(map(has_experts, paths)):
            ctx.warnings.append(
                "the model has experts, which engine and trainer may choose otherwise. "
                f"{_OFF_POLICY}=tis can't correct that, so it is pois: {', '.join(held)} sampled from a part "
                "of the vocabulary (top_p, top_k, a grammar), where log-probabilities can't be compared"
            )


def check_share_prefixes(ctx: Context) -> Iterator[ConfigIssue]:
    """What a pass over a prefix tree needs."""
    if not ctx.settings.training.share_prefixes:
        return
    for key, required, what, fix in (
        (
            f"{_ACTOR}.use_dynamic_bsz",
            True,
            "Rows that share tokens make micro-batches of uneven numbers of rows.",
            "Use training=shared_prefixes, which cuts micro-batches by tokens.",
        ),
        (
            f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
            1,
            "Sequence parallelism cuts a row where a branch may need what is on the other rank.",
            "Set it to 1.",
        ),
        (
            f"{_MODEL}.use_fused_kernels",
            False,
            "Fused kernels take a row's next token for the one to predict; a branch has several.",
            "Set it to false.",
        ),
        (
            f"{_ACTOR}.fsdp_config.pad_to_length",
            False,
            "The length of a prefix tree is not padded to it.",
            "Set it to false.",
        ),
    ):
        if ctx.get(key) not in (required, None):
            yield ctx.issue(key, f"{what} ({_SHARE} = true)", fix)
    key = f"{_MODEL}.override_config.attn_implementation"
    if ctx.get(key) not in (None, *_ATTENTION):
        what = f"There is no mask of a prefix tree for it ({_SHARE} = true)."
        yield ctx.issue(key, what, f"Use one of {', '.join(_ATTENTION)}.")
    if others := layer_kinds(ctx.read_model_config() or {}) - {FULL}:
        kinds = ", ".join(sorted(others))
        what = f"The model has layers of {kinds}, for which there is no mask of a prefix tree."
        yield ctx.issue(_SHARE, what, "Set it to false (training=separate_rows).")
