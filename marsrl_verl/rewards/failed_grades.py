"""A failed grade is data; a role of which every grade fails has a broken reward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.rewards.running import RewardUnavailableError

LEAST_GRADES, LEAST_GROUPS = 8, 4
"""Fewer failed grades in a row than these, or of fewer groups, may be the fault of what was graded (a
reference that can't be read fails its whole group); they add up over rounds."""
WARNED_SHARE = 0.1
"""Share of failed grades from which on a step is warned of."""
_SHOWN_CHARACTERS = 300

Answered = Iterable[tuple[str, Trajectory]]
"""Trajectories, each with the role that answered."""


@dataclass(slots=True)
class _Grades:
    """Grades of one role."""

    graded: int = 0
    failed: int = 0
    first_error: str = ""
    groups: set[str] = field(default_factory=set)
    """Of the failed ones."""

    def add(self, one: Trajectory, reward: RewardResult) -> None:
        self.graded += 1
        if not reward.graded:
            self.failed += 1
            self.groups.add(one.group_id)
            self.first_error = self.first_error or _one_line(reward.error or "no error is recorded")


class GradeWatch:
    """Looks at every round's grades, each role's by itself."""

    def __init__(self) -> None:
        self._failed_in_a_row: dict[str, _Grades] = {}

    def look(self, answered: Answered) -> None:
        """Look at one round. Trajectories that have not ended are passed over.

        Raises:
            RewardUnavailableError: the last grades of a role all failed, those of this round among them, and
                they are `LEAST_GRADES` or more of `LEAST_GROUPS` or more groups.
        """
        for role, found in _by_role(answered).items():
            if found.failed < found.graded:
                self._failed_in_a_row.pop(role, None)
                continue
            row = self._failed_in_a_row.setdefault(role, _Grades())
            row.failed += found.failed
            row.groups |= found.groups
            if row.failed >= LEAST_GRADES and len(row.groups) >= LEAST_GROUPS:
                raise RewardUnavailableError(
                    f"all of the last {row.failed} grades of the {role} failed, so nothing can be trained: "
                    f"fix its reward (marsrl.reward.{role}). The first error of this round: "
                    f"{found.first_error}"
                )


def grade_warnings(answered: Answered) -> list[str]:
    """A sentence for each role of which many grades failed, with the first error."""
    return [
        f"warning: {found.failed} of {found.graded} grades of the {role} failed, these trajectories are "
        f"not trained; the first: {found.first_error}"
        for role, found in _by_role(answered).items()
        if found.failed >= WARNED_SHARE * found.graded and found.failed
    ]


def _by_role(answered: Answered) -> dict[str, _Grades]:
    """The grades of trajectories that have one."""
    found: dict[str, _Grades] = {}
    for role, one in answered:
        if one.reward is not None:
            found.setdefault(role, _Grades()).add(one, one.reward)
    return found


def _one_line(text: str) -> str:
    """Printable and short: an error may quote a whole response."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
