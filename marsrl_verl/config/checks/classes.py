"""Checks of the classes that the configuration names: imported and constructed once, here."""

from __future__ import annotations

import os
import sys
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.reward_function import COMPUTE_SCORE, REWARD_FUNCTION
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.running import THREADS
from marsrl_verl.settings.declaration import ClassSpec
from marsrl_verl.settings.issues import ConfigIssue

_REWARDS = "reward=exact, reward=math_verify or reward=hybrid, or a class of yours"


def check_rewards(ctx: Context) -> list[ConfigIssue]:
    """`marsrl.reward.<role>` for every role."""
    problems: list[ConfigIssue] = []
    for role, spec in ctx.settings.reward.items():
        key = f"marsrl.reward.{role}.target"
        problems += _waits_too_long(ctx, role)
        found = _load(key, spec, RoleReward, _REWARDS)
        if isinstance(found, ConfigIssue):
            problems.append(_of_function(spec, found))
            continue
        problems += _never_idle(ctx, role, found.longest_s(THREADS))
        found.close()
    return problems


def _waits_too_long(ctx: Context, role: str) -> list[ConfigIssue]:
    """A time limit of one call that outlasts what a round may stand still."""
    limit, still = ctx.settings.reward[role].timeout_s, ctx.settings.run.progress_timeout_s
    if limit < still:
        return []
    what = (
        f"A round that only waits for one score would be ended after {still:g} s "
        "(marsrl.run.progress_timeout_s)."
    )
    fix = f"Lower it, or set marsrl.run.progress_timeout_s above {limit:g}."
    return [ConfigIssue(f"marsrl.reward.{role}.timeout_s", what, fix, limit)]


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
            ctx.settings.reward[role].kwargs,
        )
    ]


def _of_function(spec: ClassSpec, found: ConfigIssue) -> ConfigIssue:
    """The problem with a role's class, under the key that named it."""
    if spec.target != COMPUTE_SCORE:
        return found
    fix = "Name a file and its function: reward.custom_reward_function.path=… and .name=…."
    return ConfigIssue(f"{REWARD_FUNCTION}.path", found.what, fix, spec.kwargs["path"])


def check_prompts(ctx: Context) -> list[ConfigIssue]:
    """`marsrl.prompts`."""
    method = ctx.method
    found = _load("marsrl.prompts.target", ctx.settings.prompts, method.Prompts, method.default_prompts)
    return [found] if isinstance(found, ConfigIssue) else []


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
