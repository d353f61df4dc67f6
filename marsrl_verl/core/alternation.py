"""Policies of several roles that are trained in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.schedule import Schedule, Trained
from marsrl_verl.settings.declaration import MethodConfig, Switched, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import no_such_choice
from marsrl_verl.settings.run_view import RunView


class AlternationConfig(Switched):
    """Settings for training the roles' policies in turn."""

    enabled: bool = False
    """Train one policy at a time. The others sample, and learn nothing meanwhile."""
    interval: int = limits(10, ge=1, why="a turn has a step")
    """Training steps of a turn."""
    first: str | None = None
    """Role whose policy has the first turn; null: the method's first one."""

    def checks(self, run: RunView, key: str, roles: Sequence[str]) -> Iterator[ConfigIssue]:
        """Checks that there are several trained policies, and that `first` is the role of one. `key` is this
        node's; roles are in the method's order."""
        if not self.enabled:
            return
        if self.first is not None and self.first not in roles:
            yield no_such_choice(f"{key}.first", self.first, roles)
            return
        frozen = run.frozen_roles
        trained = {run.settings.policy_of(role) for role in roles if role not in frozen}
        if len(trained) > 1:
            if self.first is not None and self.first in frozen:
                what = f"The policy {frozen[self.first]} of the {self.first} is frozen, it has no turn."
                yield ConfigIssue(f"{key}.first", what, "Name another role, or leave it out.", self.first)
            return
        names = ", ".join(sorted(trained))
        what = f"The roles that are trained have one policy ({names}), which nobody takes turns with."
        own = "give each role weights of its own (policies=model_per_role or lora_per_role)"
        yield ConfigIssue(f"{key}.enabled", what, f"Set it to false, or {own}.", True)


@dataclass(frozen=True, slots=True)
class Alternation:
    """Policies in the order of their turns."""

    order: tuple[str, ...]
    interval: int

    @classmethod
    def of(
        cls, config: AlternationConfig, roles: Sequence[str], policies: Mapping[str, str]
    ) -> Alternation | None:
        """The turns of these settings; None: all are trained together. Roles are in the method's order,
        `policies` the names of those with weights by role."""
        if not config.enabled:
            return None
        begin = 0 if config.first is None else list(roles).index(config.first)
        names = [policies[role] for role in [*roles[begin:], *roles[:begin]] if role in policies]
        return cls(tuple(dict.fromkeys(names)), config.interval)

    def due(self, step: int) -> str:
        """Returns the policy that step `step` trains; steps count from 1, and each turn has `interval`
        steps."""
        return self.order[(step - 1) // self.interval % len(self.order)]


class AlternatingConfig(MethodConfig):
    """Settings of a method whose schedule is `Alternating`."""

    alternate: AlternationConfig = AlternationConfig()
    """Trains the agents in turn, where each has a policy of its own."""

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks that the policies can take turns, and the method's other settings."""
        roles = tuple(run.settings.roles)
        return [*self.alternate.checks(run, "marsrl.algo.alternate", roles), *super().checks(run)]


class Alternating(Schedule):
    """Policies that take turns, where `marsrl.algo.alternate` is on; the order of roles is that of the
    policies' mapping. A stage of several writers then trains one row of a response
    (`Stage.rows_per_response`)."""

    Config = AlternatingConfig

    def __init__(self, config: Any, tools: Any) -> None:
        super().__init__(config, tools)
        trained = {role: name for role, name in tools.policies.items() if role not in tools.frozen_roles}
        self.alternation = Alternation.of(config.alternate, tuple(tools.policies), trained)

    def trained(self, step: int) -> Trained:
        """The policy whose turn it is."""
        if self.alternation is None:
            return Trained()
        return Trained(policies=frozenset({self.alternation.due(step)}))
