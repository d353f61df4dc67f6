"""Figures of a step of AttnRL: what became of its problems, where they branched, what its trees teach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from marsrl_verl.algos.adaptive_sampling import ProblemStanding
from marsrl_verl.algos.branch_points import BranchPoint
from marsrl_verl.core.types import Group, is_correct


@dataclass(slots=True)
class TreeFigures:
    """Counted while a step settles, told when it ends."""

    standings: list[ProblemStanding] = field(default_factory=list)
    """Of the problems whose first responses were looked at."""
    filtered: int = 0
    trees: int = 0
    branch_points: int = 0
    branch_tokens: int = 0
    continued: int = 0
    """Problems whose continuations are complete, one of them graded at least."""
    continued_all_correct: int = 0
    continued_none_correct: int = 0

    def branched(self, points: Sequence[BranchPoint]) -> None:
        """One more response was expanded at these points."""
        self.trees += 1
        self.branch_points += sum(point.times for point in points)
        self.branch_tokens += sum(point.token * point.times for point in points)

    def continuations(self, groups: Sequence[Group]) -> None:
        """The continuations of one problem are complete."""
        right = [is_correct(reward) for group in groups for reward in group.rewards]
        if right:
            self.continued += 1
            self.continued_all_correct += all(right)
            self.continued_none_correct += not any(right)

    def metrics(self, *, influence: bool) -> dict[str, float]:
        """The figures by their names; what was not observed is absent.

        Args:
            influence: whether the standings hold the influence of steps.
        """
        found: dict[str, float] = {}
        if count := len(self.standings):
            right = Counter(one.correct for one in self.standings)
            all_correct = [one for one in self.standings if one.all_correct]
            found |= {
                "attnrl/problems": count,
                "attnrl/filtered_share": self.filtered / count,
                "attnrl/all_correct_share": len(all_correct) / count,
                "attnrl/none_correct_share": right[0] / count,
                **{f"attnrl/correct_responses/{number}": times for number, times in sorted(right.items())},
                "attnrl/trees_per_problem": self.trees / count,
                "attnrl/branch_points": self.branch_points,
            }
            if influence:
                found["attnrl/influence_mean"] = float(np.mean([one.influence for one in self.standings]))
                if all_correct:
                    of_these = [one.influence for one in all_correct]
                    found["attnrl/influence_all_correct_mean"] = float(np.mean(of_these))
        if self.branch_points:
            found["attnrl/branch_token_mean"] = self.branch_tokens / self.branch_points
        if self.continued:
            found |= {
                "attnrl/continued_problems": self.continued,
                "attnrl/continuations_all_correct_share": self.continued_all_correct / self.continued,
                "attnrl/continuations_none_correct_share": self.continued_none_correct / self.continued,
            }
        return found
