"""Checks of the classes that the configuration names: imported and constructed once, here."""

from __future__ import annotations

import os
import sys
from typing import Any

from marsrl_verl.algos.prompts import RolePrompts
from marsrl_verl.config.checks.context import ROLES, Context
from marsrl_verl.config.reward_function import COMPUTE_SCORE, REWARD_FUNCTION
from marsrl_verl.config.schema import ClassSpec
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.running import THREADS
from marsrl_verl.settings.issues import ConfigIssue

_REWARDS = "reward=exact, reward=math_verify or reward=hybrid, or a class of yours"
_LEAST_LIMIT_S, _MOST_LIMIT_S = 0.1, 86_400.0


def check_rewards(ctx: Context) -> list[ConfigIssue]:
    """`marsrl.reward.<role>` for every role."""
    problems: list[ConfigIssue] = []
    for role in ROLES:
        spec: ClassSpec = getattr(ctx.settings.reward, role)
        key = f"marsrl.reward.{role}.target"
        found = _load(key, spec, RoleReward, _REWARDS)
        if isinstance(found, ConfigIssue):
            problems.append(_of_function(spec, found))
            continue
        problems += _never_idle(ctx, role, found.longest_s(THREADS))
        found.close()
    return problems


def _never_idle(ctx: Context, role: str, own: float | None) -> list[ConfigIssue]:
    """A reward that ends its calls itself, later than a round may stand still."""
    still = ctx.settings.run.progress_timeout_s
    if own is None or own < still:
        return []
    return [
        ConfigIssue(
            f"marsrl.reward.{role}.kwargs",
            f"The reward's own limits allow a call {own:g} s (up to {THREADS} wait for its processes), and a "
            f"round that only waits for it would be ended after {still:g} s (marsrl.run.progress_timeout_s).",
            f"Lower its timeout_s, raise its processes, or set marsrl.run.progress_timeout_s above {own:g}.",
            getattr(ctx.settings.reward, role).kwargs,
        )
    ]


def _of_function(spec: ClassSpec, found: ConfigIssue) -> ConfigIssue:
    """The problem with a role's class, under the key that named it."""
    if spec.target != COMPUTE_SCORE:
        return found
    fix = "Name a file and its function: reward.custom_reward_function.path=… and .name=…."
    return ConfigIssue(f"{REWARD_FUNCTION}.path", found.what, fix, spec.kwargs["path"])


def check_reward_limits(ctx: Context) -> list[ConfigIssue]:
    """`marsrl.reward.<role>.timeout_s`."""
    limits = {role: getattr(ctx.settings.reward, role).timeout_s for role in ROLES}
    still = ctx.settings.run.progress_timeout_s
    too_long = [
        ConfigIssue(
            f"marsrl.reward.{role}.timeout_s",
            f"A round that only waits for one score would be ended after {still:g} s "
            "(marsrl.run.progress_timeout_s).",
            f"Lower it, or set marsrl.run.progress_timeout_s above {limit:g}.",
            limit,
        )
        for role, limit in limits.items()
        if still <= limit <= _MOST_LIMIT_S
    ]
    return too_long + [
        ConfigIssue(
            f"marsrl.reward.{role}.timeout_s",
            f"Expected seconds, from {_LEAST_LIMIT_S:g} to {_MOST_LIMIT_S:g} (a day).",
            "Leave it out (300), or set what the slowest grade takes.",
            limit,
        )
        for role, limit in limits.items()
        if not _LEAST_LIMIT_S <= limit <= _MOST_LIMIT_S
    ]


def check_prompts(ctx: Context) -> list[ConfigIssue]:
    """`marsrl.prompts`."""
    found = _load(
        "marsrl.prompts.target", ctx.settings.prompts, RolePrompts, "marsrl_verl.algos.prompts:MathPrompts"
    )
    return [found] if isinstance(found, ConfigIssue) else []


def load_prompts(ctx: Context) -> RolePrompts:
    """The prompts' class of a checked configuration."""
    base: type[Any] = RolePrompts  # abstract: mypy allows no abstract class where a type is expected
    prompts: RolePrompts = load_class(ctx.settings.prompts.target, ctx.settings.prompts.kwargs, base)
    return prompts


def _load(key: str, spec: ClassSpec, base: type[Any], examples: str) -> Any:
    """The constructed object, or the problem."""
    # A class of the user's may lie beside where the command is given, as with `python script.py`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return load_class(spec.target, spec.kwargs, base)
    except ClassLoadError as error:
        text = str(error).removeprefix(f"{spec.target}: ")
        return ConfigIssue(
            key,
            text[:1].upper() + text[1:] + ".",
            f"Name a class as package.module:ClassName ({examples}).",
            spec.target,
        )
