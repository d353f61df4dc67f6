"""verl's `custom_reward_function`: a function that scores the roles that answer the problem
(`Role.answers`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from marsrl_verl.config.node import chosen_method
from marsrl_verl.core.method import answering_roles
from marsrl_verl.rewards.compute_score import FILE_PREFIX, PACKAGE_PREFIX, ComputeScoreReward
from marsrl_verl.settings.issues import ConfigError, ConfigIssue

REWARD_FUNCTION = "reward.custom_reward_function"
"""verl 0.9.1's node; `custom_reward_function` is where earlier versions have it."""
_NODES = (REWARD_FUNCTION, "custom_reward_function")
COMPUTE_SCORE = f"{ComputeScoreReward.__module__}:{ComputeScoreReward.__name__}"
_OURS = "marsrl_verl.rewards."


def adopt_reward_function(config: DictConfig) -> tuple[str, ...]:
    """Writes a function that verl's node names to `marsrl.reward` of the answering roles, in place and with
    its absolute path, and returns a line that says so; verl itself then has none to load. ConfigError: both
    nodes name one, or a class of the user's scores the role too."""
    named = {node: path for node in _NODES if (path := OmegaConf.select(config, f"{node}.path"))}
    roles = answering_roles(chosen_method(config.marsrl.algo))
    if problems := list(_problems(config, named, roles)):
        raise ConfigError(problems)
    for node, path in named.items():
        function = OmegaConf.select(config, node)
        plain: Any = OmegaConf.to_container(function)
        arguments = {"path": _absolute(str(path)), "name": function.name or ComputeScoreReward.FUNCTION}
        if plain.get("reward_kwargs"):
            arguments["reward_kwargs"] = plain["reward_kwargs"]
        for role in roles:
            with open_dict(config.marsrl.reward[role]):
                config.marsrl.reward[role].update(target=COMPUTE_SCORE, kwargs=arguments)
        function.path = None
    return tuple(
        f"{node}.path={path} scores {' and '.join(role.capitalize() for role in roles)}"
        for node, path in named.items()
    )


def _problems(config: DictConfig, named: dict[str, Any], roles: tuple[str, ...]) -> Iterator[ConfigIssue]:
    once = "Leave one of them out."
    if len(named) > 1:
        (first, path), (second, other) = named.items()
        yield ConfigIssue(f"{second}.path", f"{first}.path = {path} is set too.", once, other)
        return
    for (node, path), role in product(named.items(), roles):
        spec = config.marsrl.reward[role]
        target = "" if OmegaConf.is_missing(spec, "target") else str(spec.target)
        chosen = {"target": "" if target.startswith(_OURS) else target, "kwargs": spec.kwargs}
        for name, value in chosen.items():
            if value:
                what = f"{node}.path = {path} scores this role too."
                yield ConfigIssue(f"marsrl.reward.{role}.{name}", what, once, value)
    # Parts of a function that nobody named.
    for node, name in product(_NODES, ("name", "reward_kwargs")):
        value = OmegaConf.select(config, f"{node}.{name}")
        is_default = node == REWARD_FUNCTION and value == ComputeScoreReward.FUNCTION
        if node not in named and value and not is_default:
            yield ConfigIssue(
                f"{node}.{name}", "It has no effect without a path.", f"Set {node}.path too.", value
            )


def _absolute(path: str) -> str:
    """Workers may be in another folder."""
    if path.startswith(PACKAGE_PREFIX):
        return path
    return str(Path(path.removeprefix(FILE_PREFIX)).expanduser().absolute())
