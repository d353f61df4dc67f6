"""Checks of verl's own settings: those that the trainer does not use must stay as they are.

A setting that has no effect is refused when it was changed (against verl's default, or against the
value that our root configuration gives it), never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.node import leaves
from marsrl_verl.config.reference import ABSENT, at, default_of, kind_problems
from marsrl_verl.config.verl_keys import FIXED_KEYS, INERT_KEYS
from marsrl_verl.settings.issues import ConfigIssue

_OURS: dict[str, Any] = {
    "trainer.use_v1": False,
    "trainer.val_before_train": False,
    "critic.enable": False,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": (
        "marsrl_verl.verl_adapter.rollout_server.rollout_manager.MarsRLAgentLoopManager"
    ),
    "actor_rollout_ref.actor.ppo_mini_batch_size": "${data.train_batch_size}",
    "reward.reward_manager.source": "importlib",
    "reward.reward_manager.name": "MarsRLRewardManager",
    "reward.reward_manager.module.path": "pkg://marsrl_verl.verl_adapter.rollout_server.reward_manager",
}
"""Values that our root configuration gives keys that the trainer does not use."""


def check_inert(ctx: Context) -> Iterator[ConfigIssue]:
    """Keys without effect that were changed."""
    for inert in INERT_KEYS:
        what = f"It was changed, but the trainer does not use it. {inert.reason}"
        for key, value in _changed(ctx, inert.key):
            if not any(key == used or key.startswith(f"{used}.") for used in inert.but):
                yield ConfigIssue(key, what, inert.instead, value)


def check_fixed(ctx: Context) -> Iterator[ConfigIssue]:
    """Keys that the trainer would honour with a wrong result."""
    for fixed in FIXED_KEYS:
        for key, value in _changed(ctx, fixed.key):
            yield ConfigIssue(key, fixed.reason, fixed.instead, value)


PROFILERS = ("torch", "torch_memory")
"""verl's tools that need nothing but the ranks themselves."""


def check_profiler(ctx: Context) -> Iterator[ConfigIssue]:
    """verl's profiler is asked for at two places, which must agree."""
    steps, enable = "global_profiler.steps", "actor_rollout_ref.actor.profiler.enable"
    tool, chosen = "actor_rollout_ref.actor.profiler.tool", ctx.get("actor_rollout_ref.actor.profiler.tool")
    if not ctx.get(enable):
        for key in (steps, "global_profiler.tool"):
            if ctx.get(key):
                yield ctx.issue(key, f"No rank is profiled: {enable} is false.", f"Set {enable}=true.")
        return
    if not ctx.get(steps):
        yield ctx.issue(enable, f"No step is profiled: {steps} names none.", f"Set {steps}=[3].")
    if chosen not in PROFILERS:
        what = f"Profiles are taken by {' or '.join(PROFILERS)}."
        yield ctx.issue(tool, what, "Set global_profiler.tool=torch.")
    elif chosen == "torch_memory" and ctx.on_cpu:
        yield ctx.issue(tool, "It records a GPU's memory.", "Set global_profiler.tool=torch.")


def changed(ctx: Context, node: str, names: tuple[str, ...]) -> list[str]:
    """Those keys of a node that differ from verl's default."""
    return [key for name in names for key, _ in _changed(ctx, f"{node}.{name}")]


def _changed(ctx: Context, key: str) -> list[tuple[str, Any]]:
    """What was changed at a key, or below it."""
    return [
        (leaf, value)
        for leaf, value in leaves(at(ctx.raw, key), key)
        if value is not ABSENT and not _same(value, _OURS.get(leaf, default_of(leaf)))
    ]


def check_types(ctx: Context) -> list[ConfigIssue]:
    """Values of verl's keys against the kind that verl expects."""
    return kind_problems(ctx.raw)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return float(value) == float(expected)
    return str(value) == str(expected)
