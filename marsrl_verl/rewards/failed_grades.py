"""A failed grade is data; a reward that fails on everything, or on much of round after round, is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from marsrl_verl.core.failures import FailedShares, Failures
from marsrl_verl.core.trajectory import FinishReason, Grading, Trajectory
from marsrl_verl.rewards.running import RewardUnavailableError

WARNED_SHARE = 0.1
"""Share of failed grades from which on a step is warned of."""

Fails = Callable[[Grading], bool]
"""Function that tells whether a grade counts as failed."""


class GradeWatch:
    """Looks at every round's grades, each role's by itself.

    Args:
        max_failed_frac: `marsrl.reward.<role>.max_failed_frac` of a role; called when a grade of it fails.
        max_unanswered_frac: likewise.
    """

    def __init__(
        self, max_failed_frac: Callable[[str], float], max_unanswered_frac: Callable[[str], float]
    ) -> None:
        self._failed_in_a_row: dict[str, Failures] = {}
        self._raising, self._silent = FailedShares(max_failed_frac), FailedShares(max_unanswered_frac)

    def look(self, trajectories: Iterable[Trajectory], *, round_ended: bool = True) -> None:
        """Looks at a round, or at a part of one.

        Trajectories that have not ended are passed over. A few failed grades may be the fault of what was
        graded, so that they add up (`Failures.many`).

        Raises:
            RewardUnavailableError: the last grades of a role all failed, those of this round among them; or
                in two or more rounds running its reward raised in more than `max_failed_frac` of the grades,
                or took too long or found no service in more than `max_unanswered_frac`.
        """
        trajectories = list(trajectories)
        for role, found in _by_role(trajectories).items():
            self._look_for_all(role, found)
        for role, found in _by_role(trajectories, lambda one: one.raised).items():
            self._raising.add(role, found)
        for role, found in _by_role(trajectories, lambda one: bool(one.error and not one.raised)).items():
            self._silent.add(role, found)
        if not round_ended:
            return
        for role, over in self._raising.end_round():
            share = _share(over, role, "max_failed_frac", self._raising)
            raise RewardUnavailableError(
                f"the reward of the {role} raised in {share}: fix it (marsrl.reward.{role}), or raise that "
                f"limit. The first error: {over.first_error}"
            )
        for role, over in self._silent.end_round():
            share = _share(over, role, "max_unanswered_frac", self._silent)
            raise RewardUnavailableError(
                f"the reward of the {role} took too long, or its service did not answer, in {share}: check "
                f"the service, or raise that limit. The first error: {over.first_error}"
            )

    def _look_for_all(self, role: str, found: Failures) -> None:
        if found.failed < found.asked:
            self._failed_in_a_row.pop(role, None)
            return
        row = self._failed_in_a_row.setdefault(role, Failures())
        row.join(found)
        if row.many:
            raise RewardUnavailableError(
                f"all of the last {row.failed} grades of the {role} failed, so nothing can be trained: fix "
                f"its reward (marsrl.reward.{role}). The first error of this round: {found.first_error}"
            )


def _share(over: Failures, role: str, key: str, shares: FailedShares) -> str:
    return (
        f"{over.failed} of {over.asked} grades of its last {over.rounds} rounds, in each of them in more "
        f"than marsrl.reward.{role}.{key} = {shares.limit(role):g} of its grades"
    )


def grade_warnings(trajectories: Iterable[Trajectory]) -> list[str]:
    """A sentence for each role of which many grades failed, with the first error."""
    return [
        f"warning: {found.failed} of {found.asked} grades of the {role} failed, these trajectories are "
        f"not trained; the first: {found.first_error}"
        for role, found in _by_role(trajectories).items()
        if found.failed >= WARNED_SHARE * found.asked and found.failed
    ]


def _by_role(
    trajectories: Iterable[Trajectory], fails: Fails = lambda one: one.error is not None
) -> dict[str, Failures]:
    """The grades of trajectories that have ended, by whose reward they are; those of an answer which an
    endpoint rejected say nothing about the reward."""
    found: dict[str, Failures] = {}
    for one in trajectories:
        if not one.paused and one.finish is not FinishReason.REFUSED:
            for grading in one.gradings:
                error = grading.error if fails(grading) else None
                found.setdefault(grading.role, Failures()).add(one.group_id, error)
    return found
