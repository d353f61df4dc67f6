"""verl's `custom_reward_function`: a function that scores the roles that answer the problem
(`Method.answering_roles`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.config.schema import chosen_method
from marsrl_verl.rewards.compute_score import FILE_PREFIX, PACKAGE_PREFIX, ComputeScoreReward
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

REWARD_FUNCTION = "reward.custom_reward_function"
"""verl 0.9.1's node; `custom_reward_function` is where earlier versions have it."""
_NODES = (REWARD_FUNCTION, "custom_reward_function")
COMPUTE_SCORE = f"{ComputeScoreReward.__module__}:{ComputeScoreReward.__name__}"
_OURS = "marsrl_verl.rewards."


def adopt_reward_function(config: DictConfig) -> tuple[str, ...]:
    """Write a function that verl's node names to `marsrl.reward` of the answering roles, with its absolute
    path; verl itself then has none to load. Nothing is done where none is named.

    Args:
        config: resolved; changed in place.

    Returns:
        A line that says so.

    Raises:
        ConfigError: both nodes name one, or a class of the user's scores the role too.
    """
    named = {node: path for node in _NODES if (path := OmegaConf.select(config, f"{node}.path"))}
    roles = chosen_method(config.marsrl.algo).answering_roles
    problems = _problems(config, named, roles)
    if problems:
        raise ConfigError(problems)
    for node, path in named.items():
        function = OmegaConf.select(config, node)
        kwargs: Any = OmegaConf.to_container(function).get("reward_kwargs")  # type: ignore[union-attr]
        arguments = {"path": _absolute(str(path)), "name": function.name or ComputeScoreReward.FUNCTION}
        for role in roles:
            with open_dict(config.marsrl.reward[role]):
                config.marsrl.reward[role].target = COMPUTE_SCORE
                config.marsrl.reward[role].kwargs = {
                    **arguments,
                    **({"reward_kwargs": kwargs} if kwargs else {}),
                }
        function.path = None
    return tuple(
        f"{node}.path={path} scores {' and '.join(role.capitalize() for role in roles)}"
        for node, path in named.items()
    )


def _problems(config: DictConfig, named: dict[str, Any], roles: tuple[str, ...]) -> list[ConfigIssue]:
    if len(named) > 1:
        return [
            ConfigIssue(
                f"{_NODES[1]}.path",
                f"{REWARD_FUNCTION}.path = {named[REWARD_FUNCTION]} is set too.",
                "Leave one of them out.",
                named[_NODES[1]],
            )
        ]
    problems = []
    for node, path in named.items():
        for role in roles:
            spec = config.marsrl.reward[role]
            target = "" if OmegaConf.is_missing(spec, "target") else str(spec.target)
            chosen = {"target": "" if target.startswith(_OURS) else target, "kwargs": spec.kwargs}
            problems += [
                ConfigIssue(
                    f"marsrl.reward.{role}.{name}",
                    f"{node}.path = {path} scores this role too.",
                    "Leave one of them out.",
                    value,
                )
                for name, value in chosen.items()
                if value
            ]
    return problems + _without_path(config)


def _without_path(config: DictConfig) -> list[ConfigIssue]:
    """Parts of a function that nobody named."""
    nodes = [node for node in _NODES if not OmegaConf.select(config, f"{node}.path")]
    keys = [f"{node}.{name}" for node in nodes for name in ("name", "reward_kwargs")]
    given = {key: value for key in keys if (value := OmegaConf.select(config, key))}
    return [
        ConfigIssue(key, "It has no effect without a path.", f"Set {key.rpartition('.')[0]}.path too.", value)
        for key, value in given.items()
        if value != ComputeScoreReward.FUNCTION or not key.startswith(REWARD_FUNCTION)
    ]


def _absolute(path: str) -> str:
    """Workers may be in another folder."""
    if path.startswith(PACKAGE_PREFIX):
        return path
    return str(Path(path.removeprefix(FILE_PREFIX)).expanduser().absolute())
