"""Checks of `marsrl.algo.attnrl`: choices, ranges, and what goes together."""

from __future__ import annotations

from enum import Enum

from marsrl_verl.algos.attnrl.adaptive_sampling import (
    ExpansionRounding,
    FilterMean,
    FilterRule,
    TreeChoice,
    most_problems,
)
from marsrl_verl.algos.attnrl.branch_points import BY_TOKEN, BranchCriterion, FciAggregation, Shortfall
from marsrl_verl.algos.attnrl.response_trees import TreeCredit
from marsrl_verl.algos.attnrl.step_cutter import StepEnds
from marsrl_verl.algos.registry import ATTNRL
from marsrl_verl.attention.choices import FciBackend
from marsrl_verl.attention.layer_kinds import MEASURED, without_influence
from marsrl_verl.config import hf_folder
from marsrl_verl.config.checks.classes import load_prompts
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.method import at_least, one_of
from marsrl_verl.config.checks.model import model_folder
from marsrl_verl.config.schema import AdaptiveBatchConfig, AlgoConfig, AttnRLConfig
from marsrl_verl.config.verl_keys import ESTIMATOR, GROUP_RELATIVE
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.core.types import SOLVER
from marsrl_verl.settings.choices import OffPolicyMode, Overlap
from marsrl_verl.settings.issues import ConfigIssue

_ALGO = "marsrl.algo"
_KEY = "marsrl.algo.attnrl"
_BATCH = f"{_KEY}.adaptive_batch"
_OVERRIDES = "actor_rollout_ref.model.override_config"
_CHOICES: dict[str, type[Enum]] = {
    "criterion": BranchCriterion,
    "fci_aggregation": FciAggregation,
    "step_ends": StepEnds,
    "shortfall": Shortfall,
    "filter": FilterRule,
    "filter_mean": FilterMean,
    "expansion": ExpansionRounding,
    "tree_choice": TreeChoice,
    "tree_credit": TreeCredit,
    "fci_backend": FciBackend,
}


def check_attnrl(ctx: Context) -> list[ConfigIssue]:
    """The node's own values, or, with another method, that they were left alone."""
    algo = ctx.settings.algo
    if algo.name != ATTNRL:
        return _untouched(algo)
    problems = [
        problem
        for name, choices in _CHOICES.items()
        for problem in one_of(f"{_KEY}.{name}", getattr(algo.attnrl, name), [one.value for one in choices])
    ]
    return problems or [*_ranges(algo.attnrl), *_inert(algo.attnrl), *_other_method(algo)]


def check_estimator(ctx: Context) -> list[ConfigIssue]:
    """Whether verl's name for group-relative advantages is what is done."""
    if not ctx.estimator_named or ctx.settings.algo.name != ATTNRL:
        return []
    what = "Trees have advantages of their own (marsrl.algo.attnrl.tree_credit)."
    return [ConfigIssue(ESTIMATOR, what, "Leave it out.", GROUP_RELATIVE)]


def check_attnrl_run(ctx: Context) -> list[ConfigIssue]:
    """What AttnRL needs of pipeline, off-policy mode and parallelism."""
    algo, pipeline = ctx.settings.algo, ctx.settings.pipeline
    mode = ctx.settings.off_policy.mode
    if algo.name != ATTNRL:
        if mode != OffPolicyMode.RECORDED.value:
            return []
        what = "Only AttnRL records log-probabilities of the trainer when samples come back."
        return [ConfigIssue("marsrl.off_policy.mode", what, "Use pois, sais or tis.", mode)]
    problems = _distance(ctx)
    batch, most = algo.attnrl.adaptive_batch, most_problems(algo, int(ctx.config.data.train_batch_size))
    if batch.enabled and batch.min_problems > most:
        what = f"It is above the most problems of a step, {most}."
        fix = f"Lower it, or set {_BATCH}.max_problems."
        problems.append(ConfigIssue(f"{_BATCH}.min_problems", what, fix, batch.min_problems))
    if pipeline.step_prompt_budget is not None and pipeline.mode == Mode.SEQUENTIAL.value:
        what = "The filter compares the problems of a step, which a budget would cut into several rounds."
        fix = "Leave it at null, or set pipeline=pipelined."
        problems.append(
            ConfigIssue("marsrl.pipeline.step_prompt_budget", what, fix, pipeline.step_prompt_budget)
        )
    if pipeline.overlap != Overlap.NONE.value:
        what = "Branch points are chosen by the trainer's forward pass, between two rounds of generation."
        problems.append(ConfigIssue("marsrl.pipeline.overlap", what, "Set it to none.", pipeline.overlap))
    if pipeline.min_group is not None:
        what = "A problem's tree is trained as a whole."
        problems.append(
            ConfigIssue("marsrl.pipeline.min_group", what, "Leave it at null.", pipeline.min_group)
        )
    if pipeline.max_input_staleness is not None:
        key = "marsrl.pipeline.max_input_staleness"
        what = "A problem's tree is trained as a whole, and a part of it would be missing."
        problems.append(ConfigIssue(key, what, "Leave it at null.", pipeline.max_input_staleness))
    if ctx.external_solver:
        what = "A tree's responses are trained, and another model's can't be."
        problems.append(
            ConfigIssue(
                "marsrl.external_solver.source",
                what,
                "Set it to none.",
                ctx.get("marsrl.external_solver.source"),
            )
        )
    key = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    if int(ctx.get(key) or 1) > 1:
        what = "Under sequence parallelism each rank sees a part of the heads, FCI needs all of them."
        problems.append(ConfigIssue(key, what, "Set it to 1.", ctx.get(key)))
    fused = "actor_rollout_ref.model.use_fused_kernels"
    if ctx.get(fused):
        what = "FCI was not tried with fused kernels."
        problems.append(ConfigIssue(fused, what, "Set it to false.", True))
    return problems + _influence_run(ctx)


def _influence_run(ctx: Context) -> list[ConfigIssue]:
    """What computes FCI, and the attention that it is taken from."""
    one = ctx.settings.algo.attnrl
    if not _needs_influence(one):
        return []
    problems = []
    if ctx.on_cpu and one.fci_backend == FciBackend.TRITON.value:
        what = "Triton's kernels need a GPU, and this run trains on the processor."
        problems.append(ConfigIssue(f"{_KEY}.fci_backend", what, "Use auto or chunked.", one.fci_backend))
    attention = (ctx.get(_OVERRIDES) or {}).get("attn_implementation")
    if attention == "eager":
        what = "FCI is taken from transformers' registry of attention functions, and eager is not in it."
        fix = "Use sdpa or flash_attention_2."
        problems.append(ConfigIssue(f"{_OVERRIDES}.attn_implementation", what, fix, attention))
    return problems


def _distance(ctx: Context) -> list[ConfigIssue]:
    """A distance that leaves no room for a branch point."""
    solver, distance = ctx.settings.roles.solver, ctx.settings.algo.attnrl.min_token_distance
    room = solver.max_prompt_tokens + solver.max_new_tokens
    if distance < room:
        return []
    what = (
        f"No branch point is so far from the beginning: prompt and response have at most {room:,} tokens, so "
        f"{_KEY}.shortfall would choose all of them."
    )
    return [ConfigIssue(f"{_KEY}.min_token_distance", what, "Lower it; 0 is no distance.", distance)]


def check_attnrl_delta(ctx: Context) -> list[ConfigIssue]:
    """A distance that no two steps of a response have. The check of the classes comes before this one."""
    one = ctx.settings.algo.attnrl
    if ctx.settings.algo.name != ATTNRL or not _needs_influence(one) or one.delta is None:
        return []
    prompts = load_prompts(ctx)
    # The first step is not measured.
    if prompts.most_steps is None or 1 + one.delta < prompts.most_steps:
        return []
    what = (
        f"Responses to {ctx.settings.prompts.target} have at most {prompts.most_steps} steps, the first of "
        "which is not measured: all influence would be 0."
    )
    return [
        ConfigIssue(f"{_KEY}.delta", what, f"Leave it out; {prompts.step_distance} suits them.", one.delta)
    ]


def influence_plan(ctx: Context) -> list[str]:
    """The line of the plan that names the distance which a run will use; none without influence."""
    one = ctx.settings.algo.attnrl
    if ctx.settings.algo.name != ATTNRL or not _needs_influence(one):
        return []
    distance = load_prompts(ctx).step_distance if one.delta is None else one.delta
    return [f"  influence: attention to a step counts from {distance} step{'s'[: distance > 1]} later on"]


def check_attnrl_model(ctx: Context) -> list[ConfigIssue]:
    """Layers of a local model for which there is no FCI; `check_model_shape` reports a file that can't be
    read."""
    algo, folder = ctx.settings.algo, model_folder(ctx)
    if algo.name != ATTNRL or not _needs_influence(algo.attnrl):
        return []
    if folder is None or not (folder / "config.json").is_file():
        return []
    try:
        written = hf_folder.read_config(folder)
    except ValueError:
        return []
    others = without_influence({**written, **(ctx.get(_OVERRIDES) or {})})
    if not others:
        return []
    key = "actor_rollout_ref.model.path"
    what = (
        f"The model (type {written.get('model_type')}) has layers of {', '.join(others)}; there is FCI for "
        f"{' and '.join(sorted(MEASURED))} only."
    )
    fix = f"Use another model, or {_KEY}.criterion=surprisal with {_KEY}.filter=none."
    return [ConfigIssue(key, what, fix, ctx.get(key))]


def _needs_influence(one: AttnRLConfig) -> bool:
    return one.criterion == BranchCriterion.FCI.value or one.filter != FilterRule.NONE.value


def _untouched(algo: AlgoConfig) -> list[ConfigIssue]:
    if algo.attnrl == AttnRLConfig():
        return []
    usual = AttnRLConfig()
    changed = [name for name in vars(usual) if getattr(algo.attnrl, name) != getattr(usual, name)]
    what = f"It has no effect with {_ALGO}.name = {algo.name}."
    return [
        ConfigIssue(f"{_KEY}.{name}", what, "Leave it out, or use algo=attnrl.", getattr(algo.attnrl, name))
        for name in changed
    ]


def _ranges(one: AttnRLConfig) -> list[ConfigIssue]:
    batch = one.adaptive_batch
    problems = [
        *at_least(f"{_KEY}.delta", one.delta, 1, "a step does not influence itself"),
        *at_least(f"{_KEY}.num_branch_points", one.num_branch_points, 1, "a tree branches"),
        *at_least(f"{_KEY}.num_continuations", one.num_continuations, 1, "a branch has a continuation"),
        *at_least(f"{_KEY}.min_token_distance", one.min_token_distance, 0, "0 is no distance"),
        *at_least(
            f"{_BATCH}.target_samples", batch.target_samples, 1, "null is that of all expanded problems"
        ),
        *at_least(f"{_BATCH}.min_problems", batch.min_problems, 1, "a step has a problem"),
        *at_least(
            f"{_BATCH}.max_problems", batch.max_problems, batch.min_problems, "it is not below min_problems"
        ),
    ]
    if not 0.0 < one.top_share <= 1.0:
        what = "Expected a number above 0 and at most 1."
        problems.append(ConfigIssue(f"{_KEY}.top_share", what, "0.2 is the paper's.", one.top_share))
    for key, value in ((f"{_KEY}.filter_decay", one.filter_decay), (f"{_BATCH}.smoothing", batch.smoothing)):
        if not 0.0 <= value < 1.0:
            what = (
                "Expected a number from 0 to below 1: with a weight of 1 for the past nothing ever changes."
            )
            problems.append(ConfigIssue(key, what, "0.9 is the default.", value))
    return problems


def _inert(one: AttnRLConfig) -> list[ConfigIssue]:
    """Settings that another one takes the effect of."""
    usual = AttnRLConfig()
    no_influence = not _needs_influence(one)
    cases = [
        ("delta", no_influence, "criterion=fci or a filter"),
        ("fci_backend", no_influence, "criterion=fci or a filter"),
        ("fci_aggregation", no_influence, "criterion=fci or a filter"),
        ("top_share", one.criterion != BranchCriterion.FCI.value, "criterion=fci"),
        ("shortfall", one.criterion in {which.value for which in BY_TOKEN}, "a criterion that chooses steps"),
        ("filter_mean", one.filter == FilterRule.NONE.value, "another filter"),
        ("filter_decay", one.filter_mean != FilterMean.EMA.value, "filter_mean=ema"),
        ("tree_choice", one.expansion == ExpansionRounding.ALL.value, "another expansion"),
    ]
    problems = [
        ConfigIssue(
            f"{_KEY}.{name}",
            "It has no effect with the settings beside it.",
            f"Leave it out, or set {wanted}.",
            getattr(one, name),
        )
        for name, without_effect, wanted in cases
        if without_effect and getattr(one, name) != getattr(usual, name)
    ]
    quiet = AdaptiveBatchConfig()
    if not one.adaptive_batch.enabled and one.adaptive_batch != quiet:
        what = f"It has no effect with {_BATCH}.enabled = false."
        problems.append(ConfigIssue(_BATCH, what, f"Leave it out, or set {_BATCH}.enabled=true."))
    return problems


def _other_method(algo: AlgoConfig) -> list[ConfigIssue]:
    """Settings of MarsRL that a tree has no use for."""
    problems = []
    if algo.correction_rounds != 0 or list(algo.train_roles) != [SOLVER]:
        what = "AttnRL has the Solver alone."
        problems.append(
            ConfigIssue(
                f"{_ALGO}.correction_rounds", what, "Use algo=attnrl, which sets it.", algo.correction_rounds
            )
        )
    if algo.normalize_std:
        what = "A tree's advantages are not divided by a standard deviation."
        problems.append(ConfigIssue(f"{_ALGO}.normalize_std", what, "Set it to false.", True))
    usual = AlgoConfig()
    for name in ("role_balance", "role_weights"):
        if getattr(algo, name) != getattr(usual, name):
            what = "With one role there is nothing to balance."
            problems.append(ConfigIssue(f"{_ALGO}.{name}", what, "Leave it out.", getattr(algo, name)))
    return problems
