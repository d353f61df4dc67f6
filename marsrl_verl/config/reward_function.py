"""verl's `custom_reward_function`: a function that scores the roles that answer the problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.config.errors import ConfigError, Problem
from marsrl_verl.core.types import CORRECTOR, SOLVER
from marsrl_verl.rewards.compute_score import FILE_PREFIX, PACKAGE_PREFIX, ComputeScoreReward

REWARD_FUNCTION = "reward.custom_reward_function"
"""verl 0.9.1's node; `custom_reward_function` is where earlier versions have it."""
_NODES = (REWARD_FUNCTION, "custom_reward_function")
COMPUTE_SCORE = f"{ComputeScoreReward.__module__}:{ComputeScoreReward.__name__}"
_OURS = "marsrl_verl.rewards."


def adopt_reward_function(config: DictConfig) -> tuple[str, ...]:
    """Write a function that verl's node names to `marsrl.reward` of Solver and Corrector, with its absolute
    path; verl itself then has none to load. Nothing is done where none is named.

    Args:
        config: resolved; changed in place.

    Returns:
        A line that says so.

    Raises:
        ConfigError: both nodes name one, or a class of the user's scores the role too.
    """
    named = {node: path for node in _NODES if (path := OmegaConf.select(config, f"{node}.path"))}
    problems = _problems(config, named)
    if problems:
        raise ConfigError(problems)
    for node, path in named.items():
        function = OmegaConf.select(config, node)
        kwargs: Any = OmegaConf.to_container(function).get("reward_kwargs")  # type: ignore[union-attr]
        arguments = {"path": _absolute(str(path)), "name": function.name or "compute_score"}
        for role in (SOLVER, CORRECTOR):
            with open_dict(config.marsrl.reward[role]):
                config.marsrl.reward[role].target = COMPUTE_SCORE
                config.marsrl.reward[role].kwargs = {
                    **arguments,
                    **({"reward_kwargs": kwargs} if kwargs else {}),
                }
        function.path = None
    return tuple(f"{node}.path={path} scores Solver and Corrector" for node, path in named.items())


def _problems(config: DictConfig, named: dict[str, Any]) -> list[Problem]:
    if len(named) > 1:
        return [
            Problem(
                f"{_NODES[1]}.path",
                f"{REWARD_FUNCTION}.path = {named[REWARD_FUNCTION]} is set too.",
                "Leave one of them out.",
                named[_NODES[1]],
            )
        ]
    return [
        Problem(
            f"marsrl.reward.{role}.target",
            f"{node}.path = {path} scores this role too.",
            "Leave one of them out.",
            target,
        )
        for node, path in named.items()
        for role in (SOLVER, CORRECTOR)
        if (target := _target(config, role)) and not target.startswith(_OURS)
    ]


def _target(config: DictConfig, role: str) -> str:
    return str(OmegaConf.select(config, f"marsrl.reward.{role}.target") or "")


def _absolute(path: str) -> str:
    """Workers may be in another folder."""
    if path.startswith(PACKAGE_PREFIX):
        return path
    return str(Path(path.removeprefix(FILE_PREFIX)).expanduser().absolute())
