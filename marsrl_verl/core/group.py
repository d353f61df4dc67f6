"""The trajectories of one request are a group: what is compared when advantages are computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import Trajectory


@dataclass(slots=True, eq=False)
class Group:
    """The trajectories of one request by their number, complete when there are `request.n`."""

    request: RolloutRequest
    trajectories: list[Trajectory]
    trained_before: frozenset[str] = frozenset()
    """Ids of trajectories that entered an earlier step's loss; they only count for the group's mean."""

    @property
    def group_id(self) -> str:
        """The group id of the request."""
        return self.request.group_id

    @property
    def comparable(self) -> list[Trajectory]:
        """The trajectories whose reward says something about their text."""
        return [one for one in self.trajectories if one.comparable]

    @property
    def rewards(self) -> list[float]:
        """Rewards in the order of `comparable`."""
        return [one.value for one in self.comparable]

    def to_plain(self) -> dict[str, Plain]:
        """The group as plain data, without the request."""
        return {
            "trajectories": [one.to_plain() for one in self.trajectories],
            "trained_before": sorted(self.trained_before),
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Plain], request: RolloutRequest) -> Group:
        """The inverse of `to_plain`."""
        members = [Trajectory.from_plain(one) for one in data["trajectories"]]
        return cls(request, members, frozenset(data["trained_before"]))
