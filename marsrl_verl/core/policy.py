"""Policies: named sets of weights, and which version of them samples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from marsrl_verl.settings.choices import Choice


class PolicyKind(Choice):
    """What a policy consists of."""

    MODEL = "model"
    """A model of its own."""
    LORA = "lora"
    """An adapter on the frozen model, which all adapters share."""
    ENDPOINT = "endpoint"
    """A frozen model behind an OpenAI-compatible endpoint."""
    JSONL = "jsonl"
    """A file of recorded answers."""

    @property
    def trained(self) -> bool:
        """True if it has weights of ours."""
        return self in (PolicyKind.MODEL, PolicyKind.LORA)


SHARED = "shared"
"""The policy of every role that is given no other."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A named set of weights."""

    name: str = SHARED
    kind: PolicyKind = PolicyKind.MODEL

    @property
    def trained(self) -> bool:
        """True if it has weights of ours. Others give only text, no sequences."""
        return self.kind.trained


class PolicySet:
    """The policies of a run: which one a role uses, and the version of each.

    A version is the last training step in which the policy was due for training, 0 before the first; also
    where that step had nothing to train. So all that is sampled between two syncs has one version.

    Args:
        policies: in any order, with distinct names.
        roles: role -> name of its policy; roles that are absent use the only policy with weights.

    Raises:
        ValueError: names are not distinct, or a role names no policy.
    """

    def __init__(
        self, policies: Collection[Policy] = (Policy(),), roles: Mapping[str, str] | None = None
    ) -> None:
        self._policies = {policy.name: policy for policy in policies}
        if len(self._policies) != len(policies) or not policies:
            raise ValueError(f"policies need distinct names, found {[policy.name for policy in policies]}")
        self._roles = dict(roles or {})
        for role, name in self._roles.items():
            if name not in self._policies:
                raise ValueError(
                    f"role {role} names the policy {name!r}, known: {', '.join(sorted(self._policies))}"
                )
        self.trained = tuple(sorted(name for name, one in self._policies.items() if one.trained))
        """Names of the policies with weights of ours, sorted."""
        self._versions = dict.fromkeys(self.trained, 0)

    @property
    def names(self) -> frozenset[str]:
        """Names of all policies."""
        return frozenset(self._policies)

    def of(self, role: str) -> Policy:
        """The policy of a role.

        Raises:
            ValueError: the role is given none, and there are several.
        """
        name = self._roles.get(role)
        if name is None and len(self.trained) == 1:
            name = self.trained[0]
        if name is None:
            raise ValueError(
                f"role {role!r} has no policy; roles with one: {', '.join(sorted(self._roles))}; policies: "
                f"{', '.join(sorted(self._policies))}"
            )
        return self._policies[name]

    def __getitem__(self, name: str) -> Policy:
        return self._policies[name]

    def version(self, name: str) -> int:
        """The version of a policy's weights; 0 for what is never trained."""
        if name not in self._policies:
            raise ValueError(f"there is no policy {name!r}, known: {', '.join(sorted(self._policies))}")
        return self._versions.get(name, 0)

    def updated(self, names: Collection[str], step: int) -> None:
        """Notes that training step `step` was the turn of these policies.

        Raises:
            ValueError: one is unknown or frozen, or versions would not rise.
        """
        for name in names:
            if name not in self._versions:
                raise ValueError(
                    f"policy {name!r} can't be trained, those that can: {', '.join(self.trained)}"
                )
            if step <= self._versions[name]:
                raise ValueError(
                    f"policy {name!r} has version {self._versions[name]}, step {step} is not newer"
                )
        self._versions.update(dict.fromkeys(names, step))

    def state_dict(self) -> dict[str, Any]:
        """The versions."""
        return {"versions": dict(self._versions)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with saved versions.

        Raises:
            ValueError: they are of other policies.
        """
        saved = dict(state["versions"])
        if saved.keys() != self._versions.keys():
            raise ValueError(
                f"the checkpoint has versions of the policies {sorted(saved)}, this run trains "
                f"{list(self.trained)}"
            )
        self._versions = saved
