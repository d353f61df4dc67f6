"""A failed grade is data; a reward that fails on everything, or on much of round after round, is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    rounds: int = 1

    def add(self, one: Trajectory, reward: RewardResult, *, failed: bool) -> None:
        self.graded += 1
        if failed:
            self.failed += 1
            self.groups.add(one.group_id)
            self.first_error = self.first_error or _one_line(reward.error or "no error is recorded")

    def join(self, more: _Grades, *, rounds: int = 0) -> None:
        self.graded += more.graded
        self.failed += more.failed
        self.groups |= more.groups
        self.first_error = self.first_error or more.first_error
        self.rounds += rounds

    @property
    def many(self) -> bool:
        """Whether what was graded can hardly be at fault."""
        return self.failed >= LEAST_GRADES and len(self.groups) >= LEAST_GROUPS


class GradeWatch:
    """Looks at every round's grades, each role's by itself.

    Args:
        max_failed_frac: `marsrl.reward.<role>.max_failed_frac` of a role; asked when a grade of it fails.
    """

    def __init__(self, max_failed_frac: Callable[[str], float]) -> None:
        self._max_failed_frac = max_failed_frac
        self._failed_in_a_row: dict[str, _Grades] = {}
        self._round: dict[str, _Grades] = {}
        """Grades of the round so far, in which those of rewards that raised count as failed."""
        self._over: dict[str, _Grades] = {}
        """Those of the last rounds of a role, all over the limit."""

    def look(self, answered: Answered, *, round_ended: bool = True) -> None:
        """Look at a round, or at a part of one.

        Trajectories that have not ended are passed over. A few failed grades may be the fault of what was
        graded, so that they add up: `LEAST_GRADES` or more of `LEAST_GROUPS` or more groups end the run.

        Raises:
            RewardUnavailableError: the last grades of a role all failed, those of this round among them; or
                its reward raised in more than `max_failed_frac` of the grades of two or more rounds running.
        """
        answered = list(answered)
        for role, found in _by_role(answered).items():
            self._look_for_all(role, found)
        for role, found in _by_role(answered, raised=True).items():
            self._round.setdefault(role, _Grades()).join(found)
        if round_ended:
            ended, self._round = self._round, {}
            for role, found in ended.items():
                self._look_for_share(role, found)

    def _look_for_all(self, role: str, found: _Grades) -> None:
        if found.failed < found.graded:
            self._failed_in_a_row.pop(role, None)
            return
        row = self._failed_in_a_row.setdefault(role, _Grades())
        row.join(found)
        if row.many:
            raise RewardUnavailableError(
                f"all of the last {row.failed} grades of the {role} failed, so nothing can be trained: "
                f"fix its reward (marsrl.reward.{role}). The first error of this round: "
                f"{found.first_error}"
            )

    def _look_for_share(self, role: str, found: _Grades) -> None:
        limit = self._max_failed_frac(role) if found.failed else 0.0
        if found.failed <= limit * found.graded:
            self._over.pop(role, None)
            return
        if role not in self._over:
            self._over[role] = found
            return
        over = self._over[role]
        over.join(found, rounds=1)
        if over.many:
            raise RewardUnavailableError(
                f"the reward of the {role} raised in {over.failed} of {over.graded} grades of the last "
                f"{over.rounds} rounds, in each of them in more than marsrl.reward.{role}.max_failed_frac = "
                f"{limit:g} of its grades: fix it (marsrl.reward.{role}), or raise that limit. The first "
                f"error: {over.first_error}"
            )


def grade_warnings(answered: Answered) -> list[str]:
    """A sentence for each role of which many grades failed, with the first error."""
    return [
        f"warning: {found.failed} of {found.graded} grades of the {role} failed, these trajectories are "
        f"not trained; the first: {found.first_error}"
        for role, found in _by_role(answered).items()
        if found.failed >= WARNED_SHARE * found.graded and found.failed
    ]


def _by_role(answered: Answered, *, raised: bool = False) -> dict[str, _Grades]:
    """The grades of trajectories that have one.

    Args:
        raised: of failed ones, only those of rewards that raised count as failed.
    """
    found: dict[str, _Grades] = {}
    for role, one in answered:
        if one.reward is not None:
            failed = one.reward.raised if raised else not one.reward.graded
            found.setdefault(role, _Grades()).add(one, one.reward, failed=failed)
    return found


def _one_line(text: str) -> str:
    """Printable and short: an error may quote a whole response."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
