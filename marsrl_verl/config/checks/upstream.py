"""Checks of verl's own settings: those that the trainer does not use must stay as they are.

A setting that has no effect is refused when it was changed (against verl's default, or against the
value that our root configuration gives it), never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.kinds import kind_problems
from marsrl_verl.config.reference import default_of
from marsrl_verl.config.unused_keys import FIXED_KEYS, INERT_KEYS
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

_NOTHING = object()


def check_inert(ctx: Context) -> list[ConfigIssue]:
    """Keys without effect that were changed."""
    return [
        ConfigIssue(
            key, f"It was changed, but the trainer does not use it. {inert.reason}", inert.instead, value
        )
        for inert in INERT_KEYS
        for key, value in _changed_leaves(ctx, inert.key)
    ]


def check_fixed(ctx: Context) -> list[ConfigIssue]:
    """Keys that the trainer would honour with a wrong result."""
    return [
        ConfigIssue(key, fixed.reason, fixed.instead, value)
        for fixed in FIXED_KEYS
        for key, value in _changed_leaves(ctx, fixed.key)
    ]


def changed(ctx: Context, node: str, names: tuple[str, ...]) -> list[tuple[str, Any]]:
    """Those keys of a node that differ from verl's default, with their values."""
    keys = [f"{node}.{name}" for name in names]
    return [(key, ctx.get(key)) for key in keys if not _same(_find(ctx.raw, key), _expected(key))]


def _changed_leaves(ctx: Context, key: str) -> list[tuple[str, Any]]:
    """What was changed at a key, or below it."""
    return [
        (leaf, value)
        for leaf, value in _leaves(key, _find(ctx.raw, key))
        if value is not _NOTHING and not _same(value, _expected(leaf))
    ]


def check_types(ctx: Context) -> list[ConfigIssue]:
    """Values of verl's keys against the kind that verl expects."""
    return kind_problems(ctx.raw)


def _expected(key: str) -> Any:
    if key in _OURS:
        return _OURS[key]
    try:
        return default_of(key)
    except KeyError:
        return _NOTHING


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return float(value) == float(expected)
    return str(value) == str(expected)


def _find(tree: dict[str, Any], key: str) -> Any:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return _NOTHING
        node = node[part]
    return node


def _leaves(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), value)
    else:
        yield key, node
