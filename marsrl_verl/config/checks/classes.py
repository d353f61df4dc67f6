"""Checks of the classes that the configuration names: imported and constructed once, here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.reward_function import COMPUTE_SCORE, REWARD_FUNCTION
from marsrl_verl.core.prompts import interface, target_of
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.loading import ClassLoadError, load_class
from marsrl_verl.rewards.running import THREADS
from marsrl_verl.settings.declaration import ClassSpec
from marsrl_verl.settings.issues import ConfigIssue

_REWARDS = "reward=exact, reward=math_verify or reward=hybrid, or a class of yours"


def check_rewards(ctx: Context) -> Iterator[ConfigIssue]:
    """`marsrl.reward.<role>` for every role: a class, and time limits within what a round may stand still."""
    still = ctx.settings.run.progress_timeout_s
    ended = f"would be ended after {still:g} s (marsrl.run.progress_timeout_s)."
    for role, spec in ctx.settings.reward.items():
        key = f"marsrl.reward.{role}"
        if spec.timeout_s >= still:
            fix = f"Lower it, or set marsrl.run.progress_timeout_s above {spec.timeout_s:g}."
            yield ctx.issue(f"{key}.timeout_s", f"A round that only waits for one score {ended}", fix)
        reward = _load(f"{key}.target", spec, RoleReward, _REWARDS)
        if not isinstance(reward, ConfigIssue):
            own = reward.longest_s(THREADS)
            if own is not None and own >= still:
                what = (
                    f"The reward's own limits allow a call {own:g} s (up to {THREADS} wait for its "
                    f"processes), and a round that only waits for it {ended}"
                )
                fix = (
                    "Lower its timeout_s, raise its processes, or set marsrl.run.progress_timeout_s above "
                    f"{own:g}."
                )
                yield ctx.issue(f"{key}.kwargs", what, fix)
            reward.close()
        elif spec.target == COMPUTE_SCORE:  # under the key that named it
            yield ConfigIssue(f"{REWARD_FUNCTION}.path", reward.what, reward.fix, spec.kwargs["path"])
        else:
            yield reward


def check_prompts(ctx: Context) -> Iterator[ConfigIssue]:
    """`marsrl.prompts`."""
    method = ctx.method
    examples = f"{target_of(method.Prompts)}, or those of another model=…"
    found = _load("marsrl.prompts.target", ctx.settings.prompts, interface(method.Prompts), examples)
    if isinstance(found, ConfigIssue):
        yield found


def _load(key: str, spec: ClassSpec, base: type[Any], examples: str) -> Any:
    """The constructed object, or the problem."""
    # A class of the user's may lie beside where the command is given, as with `python script.py`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return load_class(spec.target, spec.kwargs, base)
    except ClassLoadError as error:
        text = str(error).removeprefix(f"{spec.target}: ")
        fix = error.fix or (
            "Name a file and its function: reward.custom_reward_function.path=… and .name=…."
            if spec.target == COMPUTE_SCORE
            else f"Name a class as package.module:ClassName ({examples})."
        )
        return ConfigIssue(key, f"{text[:1].upper()}{text[1:]}.", fix, spec.target)
