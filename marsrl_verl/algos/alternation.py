"""Policies of several roles that are trained in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marsrl_verl.core.method import RunView
from marsrl_verl.settings.declaration import Switched, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import no_such_choice


class AlternationConfig(Switched):
    """Whether the roles' policies are trained in turn."""

    enabled: bool = False
    """Train one policy at a time. The others sample, and learn nothing meanwhile."""
    interval: int = limits(10, ge=1, why="a turn has a step")
    """Training steps of a turn."""
    first: str | None = None
    """Role whose policy has the first turn; null: the method's first one."""


@dataclass(frozen=True, slots=True)
class Alternation:
    """Policies in the order of their turns."""

    order: tuple[str, ...]
    interval: int

    @classmethod
    def of(
        cls, config: AlternationConfig, roles: Sequence[str], policies: Mapping[str, str]
    ) -> Alternation | None:
        """The turns of these settings; None: all are trained together.

        Args:
            config: a node of the method's settings.
            roles: in the method's order.
            policies: by role, the names of those with weights.
        """
        if not config.enabled:
            return None
        names = [policies[role] for role in _order(config, roles) if role in policies]
        return cls(tuple(dict.fromkeys(names)), config.interval)

    def due(self, step: int) -> str:
        """Whose turn training step `step` is; the first one is 1, and the first turn has `interval` steps."""
        return self.order[(step - 1) // self.interval % len(self.order)]


def _order(config: AlternationConfig, roles: Sequence[str]) -> list[str]:
    """The roles, from the first one that is named on."""
    begin = 0 if config.first is None else list(roles).index(config.first)
    return [*roles[begin:], *roles[:begin]]


def alternation_checks(
    run: RunView, config: AlternationConfig, key: str, roles: Sequence[str]
) -> list[ConfigIssue]:
    """Turns need policies that can take them.

    Args:
        config: a node of the method's settings.
        key: its key.
        roles: in the method's order.
    """
    if not config.enabled:
        return []
    if config.first is not None and config.first not in roles:
        return [no_such_choice(f"{key}.first", config.first, roles)]
    frozen = run.frozen_roles
    trained = {run.settings.policy_of(role) for role in roles if role not in frozen}
    if len(trained) > 1:
        if config.first is not None and config.first in frozen:
            what = f"The policy {frozen[config.first]} of the {config.first} is frozen, it has no turn."
            return [ConfigIssue(f"{key}.first", what, "Name another role, or leave it out.", config.first)]
        return []
    names = ", ".join(sorted(trained))
    what = f"The roles that are trained have one policy ({names}), which nobody takes turns with."
    fix = "Set it to false, or give each role weights of its own (policies=model_per_role or lora_per_role)."
    return [ConfigIssue(f"{key}.enabled", what, fix, True)]
