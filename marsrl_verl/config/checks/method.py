"""Checks of the method, the pipeline, the evaluation and the run: values that have a closed set or range."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from marsrl_verl.algos.marsrl.method import SelectScope
from marsrl_verl.algos.marsrl.selection import Strategy
from marsrl_verl.algos.registry import ALGORITHMS
from marsrl_verl.config.checks.context import ROLES, Context
from marsrl_verl.config.checks.lengths import temperature_problems
from marsrl_verl.config.schema import AlgoConfig, RunConfig
from marsrl_verl.core.advantages import RoleBalance
from marsrl_verl.core.scheduler import Mode
from marsrl_verl.core.types import SOLVER
from marsrl_verl.reporting.run_folder import Existing
from marsrl_verl.settings.issues import ConfigIssue, did_you_mean

METHODS = tuple(ALGORITHMS)
SELECTIONS = tuple(item.value for item in Strategy)
SCOPES = tuple(item.value for item in SelectScope)
BALANCES = tuple(item.value for item in RoleBalance)
MODES = tuple(item.value for item in Mode)
EXISTING = tuple(item.value for item in Existing)
SEEDED_TOKENS = ("none", "evaluation", "all")


def one_of(key: str, value: Any, known: Iterable[str]) -> list[ConfigIssue]:
    """A problem when `value` is not one of `known`."""
    options = tuple(known)
    if value in options:
        return []
    near = did_you_mean(str(value), options)
    guess = f"Did you mean {near[0]}? " if near else ""
    return [ConfigIssue(key, "There is no such choice.", f"{guess}Use one of: {', '.join(options)}.", value)]


def at_least(key: str, value: float | None, least: float, why: str) -> list[ConfigIssue]:
    """A problem when `value` is below `least`."""
    if value is None or value >= least:
        return []
    return [ConfigIssue(key, f"Expected at least {least}: {why}.", f"Set {key} to {least} or more.", value)]


def check_choices(ctx: Context) -> list[ConfigIssue]:
    """Settings with a closed set of values."""
    algo, run = ctx.settings.algo, ctx.settings.run
    return [
        *one_of("marsrl.algo.name", algo.name, METHODS),
        *one_of("marsrl.algo.selection", algo.selection, SELECTIONS),
        *one_of("marsrl.algo.select_scope", algo.select_scope, SCOPES),
        *one_of("marsrl.algo.role_balance", algo.role_balance, BALANCES),
        *one_of("marsrl.pipeline.mode", ctx.settings.pipeline.mode, MODES),
        *one_of("marsrl.run.existing", run.existing, EXISTING),
        *one_of("marsrl.run.seeded_tokens", run.seeded_tokens, SEEDED_TOKENS),
    ]


def check_ranges(ctx: Context) -> list[ConfigIssue]:
    """Numbers that have a least or a greatest value."""
    algo, pipeline, evaluation = ctx.settings.algo, ctx.settings.pipeline, ctx.settings.evaluation
    most_tokens = ctx.settings.run.max_generated_tokens
    problems = [
        *at_least(
            "marsrl.algo.group_size", algo.group_size, 2, "advantages compare the responses of a group"
        ),
        *at_least("marsrl.algo.inputs_per_stage", algo.inputs_per_stage, 1, "a stage needs an input"),
        *at_least("marsrl.algo.correction_rounds", algo.correction_rounds, 0, "0 is the Solver alone"),
        *at_least("marsrl.pipeline.updates_per_step", pipeline.updates_per_step, 1, "a step has an update"),
        *at_least("marsrl.pipeline.samples_per_update", pipeline.samples_per_update, 1, "null is no number"),
        *at_least("marsrl.pipeline.step_prompt_budget", pipeline.step_prompt_budget, 1, "null is no limit"),
        *at_least("marsrl.run.max_generated_tokens", most_tokens, 1, "null is no limit"),
        *at_least("marsrl.evaluation.every", evaluation.every, 0, "0 is never in between"),
        *at_least("marsrl.evaluation.problems", evaluation.problems, 1, "null is all of them"),
        *at_least("marsrl.evaluation.samples_per_problem", evaluation.samples_per_problem, 1, "it is a mean"),
        *at_least("marsrl.evaluation.correction_rounds", evaluation.correction_rounds, 0, "0 is none"),
    ]
    problems += _check_limits(ctx.settings.run)
    if not 0.0 < evaluation.confidence < 1.0:
        problems.append(
            ConfigIssue(
                "marsrl.evaluation.confidence",
                "Expected a number between 0 and 1.",
                "0.95 is the usual choice.",
                evaluation.confidence,
            )
        )
    if evaluation.top_p is not None and not 0.0 < evaluation.top_p <= 1.0:
        what = "Expected a number above 0, at most 1."
        problems.append(
            ConfigIssue("marsrl.evaluation.top_p", what, "null takes the roles' own.", evaluation.top_p)
        )
    problems += temperature_problems(
        "marsrl.evaluation.temperature",
        evaluation.temperature,
        "Greedy decoding is evaluated beside it (marsrl.evaluation.greedy=true).",
    )
    return problems


def _check_limits(run: RunConfig) -> list[ConfigIssue]:
    """Times that the run waits for others."""
    keys = ("engine_timeout_s", "sync_timeout_s", "progress_timeout_s")
    why = "shorter than that, a working engine may be silent"
    return [problem for key in keys for problem in at_least(f"marsrl.run.{key}", getattr(run, key), 10, why)]


def check_selection(ctx: Context) -> list[ConfigIssue]:
    """Inputs per stage against what a stage can give."""
    algo = ctx.settings.algo
    if algo.correction_rounds == 0:
        return _check_single_stage(algo)
    problems = []
    if algo.inputs_per_stage > algo.group_size:
        problems.append(
            ConfigIssue(
                "marsrl.algo.inputs_per_stage",
                f"The Solver's one group per problem has {algo.group_size} responses, so no more of them can "
                "be chosen as inputs of the next stage.",
                f"Set it to at most marsrl.algo.group_size = {algo.group_size}.",
                algo.inputs_per_stage,
            )
        )
    if algo.distinct_answers and set(algo.train_roles) == {SOLVER}:
        problems.append(
            ConfigIssue(
                "marsrl.algo.distinct_answers",
                "It concerns the Verifier's inputs, and none are chosen where the Solver alone is trained.",
                "Leave it out, or add a role to marsrl.algo.train_roles.",
                algo.distinct_answers,
            )
        )
    return problems


def _check_single_stage(algo: AlgoConfig) -> list[ConfigIssue]:
    """Without a second stage nothing is selected."""
    usual = AlgoConfig()
    return [
        ConfigIssue(
            f"marsrl.algo.{name}",
            "With marsrl.algo.correction_rounds = 0 the Solver is the only stage, so no inputs of a next one "
            "are chosen.",
            f"Leave it at {getattr(usual, name)}, or raise marsrl.algo.correction_rounds.",
            getattr(algo, name),
        )
        for name in ("selection", "select_scope", "inputs_per_stage", "distinct_answers")
        if getattr(algo, name) != getattr(usual, name)
    ]


def check_train_roles(ctx: Context) -> list[ConfigIssue]:
    """Roles that are trained, and their weights."""
    algo = ctx.settings.algo
    key = "marsrl.algo.train_roles"
    problems: list[ConfigIssue] = []
    if not algo.train_roles:
        problems.append(
            ConfigIssue(key, "No role is trained.", f"Name at least one of: {', '.join(ROLES)}.", "[]")
        )
    for role in algo.train_roles:
        problems += one_of(key, role, ROLES)
    if len(set(algo.train_roles)) < len(algo.train_roles):
        problems.append(
            ConfigIssue(key, "A role is named twice.", "Name each role once.", ", ".join(algo.train_roles))
        )
    absent = [role for role in algo.train_roles if role in ROLES[1:]] if algo.correction_rounds == 0 else []
    if absent:
        problems.append(
            ConfigIssue(
                key,
                "With marsrl.algo.correction_rounds = 0 only the Solver is generated, so "
                f"{' and '.join(absent)} can't be trained.",
                "Raise marsrl.algo.correction_rounds, or use algo=grpo.",
                ", ".join(algo.train_roles),
            )
        )
    return problems + _check_weights(ctx)


def _check_weights(ctx: Context) -> list[ConfigIssue]:
    algo = ctx.settings.algo
    problems: list[ConfigIssue] = []
    for role, weight in algo.role_weights.items():
        key = f"marsrl.algo.role_weights.{role}"
        if role not in ROLES:
            problems += one_of(key, str(role), ROLES)
        elif role not in algo.train_roles:
            problems.append(
                ConfigIssue(
                    key,
                    "The role is not trained, so its weight has no effect.",
                    "Add the role to marsrl.algo.train_roles, or remove the weight.",
                    weight,
                )
            )
        elif weight <= 0.0:
            problems.append(
                ConfigIssue(
                    key,
                    "Expected a weight above 0.",
                    "To leave a role untrained remove it from marsrl.algo.train_roles.",
                    weight,
                )
            )
    return problems
