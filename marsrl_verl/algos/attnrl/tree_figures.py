"""Figures of a step of AttnRL: outcomes of its problems, branch points, and the trees that train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from marsrl_verl.algos.attnrl.adaptive_sampling import ProblemStatistics
from marsrl_verl.algos.attnrl.branch_points import BranchPoint
from marsrl_verl.core.group import Group
from marsrl_verl.core.trajectory import is_correct


@dataclass(frozen=True, slots=True)
class TreeOutcome:
    """Shares of right responses to one problem; None where there are no responses."""

    first: float | None
    continuations: float | None
    leaves: float | None
    """First responses and continuations together."""
    is_trainable: bool
    """If true, the tree enters a loss: its leaves do not all have one reward."""


@dataclass(slots=True)
class TreeFigures:
    """Figures that are counted while a step settles, and reported when it ends."""

    statistics: list[ProblemStatistics] = field(default_factory=list)
    """Statistics of the problems whose first responses were looked at."""
    filtered: list[ProblemStatistics] = field(default_factory=list)
    """Those of the problems that the filter kept from being expanded."""
    trees: Counter[str] = field(default_factory=Counter)
    """Expanded responses by problem; problems without any are absent."""
    branch_points: int = 0
    branch_tokens: int = 0
    branch_positions: float = 0.0
    """Sum of the points' places in their responses, from 0 to 1."""
    compared_responses: int = 0
    like_earliest: int = 0
    """Compared responses with the points that the earliest steps would give."""
    outcomes: list[TreeOutcome] = field(default_factory=list)
    """Outcomes of the problems that ended with a graded response."""

    def branched(self, problem_id: str, points: Sequence[BranchPoint], length: int) -> None:
        """Counts a response of `length` tokens that was expanded at these points."""
        self.trees[problem_id] += 1
        self.branch_points += sum(point.times for point in points)
        tokens = sum(point.token * point.times for point in points)
        self.branch_tokens += tokens
        self.branch_positions += tokens / length

    def compared(self, like_earliest: bool) -> None:
        """Counts a response, and whether its points are those that the earliest steps would give."""
        self.compared_responses += 1
        self.like_earliest += like_earliest

    def ended(self, groups: Sequence[Group], *, is_trainable: bool) -> None:
        """Counts a problem that ended with these groups; `is_trainable`: its tree enters a loss."""
        first: list[bool] = []
        later: list[bool] = []
        for group in groups:
            (first if group.request.prefix is None else later).extend(map(is_correct, group.rewards))
        if first or later:
            leaves = _right(first + later)
            self.outcomes.append(TreeOutcome(_right(first), _right(later), leaves, is_trainable))

    def metrics(self, *, influence: bool) -> dict[str, float]:
        """Returns the figures by name, without those that were not observed.

        Args:
            influence: whether the statistics hold the influence of steps.
        """
        found: dict[str, float] = {}
        if count := len(self.statistics):
            right = Counter(one.correct for one in self.statistics)
            all_correct = [one for one in self.statistics if one.all_correct]
            numbers = Counter(self.trees.values())
            found |= {
                "attnrl/problems": count,
                "attnrl/filtered_frac": len(self.filtered) / count,
                "attnrl/filtered_all_correct": sum(one.all_correct for one in self.filtered),
                "attnrl/filtered_none_correct": sum(one.correct == 0 for one in self.filtered),
                "attnrl/all_correct_frac": len(all_correct) / count,
                "attnrl/none_correct_frac": right[0] / count,
                **{f"attnrl/correct_responses/{number}": times for number, times in sorted(right.items())},
                "attnrl/trees_per_problem": self.trees.total() / count,
                **{f"attnrl/trees/{number}": times for number, times in sorted(numbers.items())},
                "attnrl/branch_points": self.branch_points,
            }
            if influence:
                found["attnrl/influence_mean"] = float(np.mean([one.influence for one in self.statistics]))
                without = sum(one.without_influence for one in self.statistics)
                responses = sum(one.responses for one in self.statistics)
                found["attnrl/without_influence_frac"] = without / responses
                if all_correct:
                    of_these = [one.influence for one in all_correct]
                    found["attnrl/influence_all_correct_mean"] = float(np.mean(of_these))
        if self.branch_points:
            found["attnrl/branch_token_mean"] = self.branch_tokens / self.branch_points
            found["attnrl/branch_position_mean"] = self.branch_positions / self.branch_points
        if self.compared_responses:
            found["attnrl/earliest_points_frac"] = self.like_earliest / self.compared_responses
        return found | self._ends()

    def _ends(self) -> dict[str, float]:
        """Returns figures of the trees' outcomes."""
        if not self.outcomes:
            return {}
        leaves = [one.leaves for one in self.outcomes]
        found: dict[str, float] = {
            "attnrl/ended_problems": len(leaves),
            "attnrl/discarded_problems": sum(not one.is_trainable for one in self.outcomes),
            "attnrl/leaves_all_correct_frac": _share(leaves, 1.0),
            "attnrl/leaves_none_correct_frac": _share(leaves, 0.0),
        }
        continued = [one for one in self.outcomes if one.continuations is not None]
        if continued:
            later = [one.continuations for one in continued]
            found |= {
                "attnrl/continued_problems": len(later),
                "attnrl/continuations_all_correct_frac": _share(later, 1.0),
                "attnrl/continuations_none_correct_frac": _share(later, 0.0),
            }
        for name, right in (("all", 1.0), ("none", 0.0)):
            later = [one.continuations for one in continued if one.first == right]
            if later:
                found[f"attnrl/stays_{name}_correct_frac"] = _share(later, right)
        return found


def _right(rights: Sequence[bool]) -> float | None:
    return sum(rights) / len(rights) if rights else None


def _share(outcomes: Sequence[float | None], right: float) -> float:
    """Returns the share of the problems whose share of right responses is `right`."""
    return sum(one == right for one in outcomes) / len(outcomes)
