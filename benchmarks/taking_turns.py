"""MarsRL whose policies take turns, step by step: for runs that look at what one policy's step does."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import RowRef


class TakingTurns(MarsRL):
    """`marsrl.algo.name=benchmarks.taking_turns:TakingTurns`; the last policy by name begins."""

    _due: str = ""

    def train_policies(self, step: int, trained: Collection[str]) -> frozenset[str]:
        """The policy whose turn the step is."""
        self._due = whose_turn(step, trained)
        return frozenset({self._due})

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """Its rows alone."""
        rows = super().select(groups, step)
        return [ref for ref in rows if _policy(groups, ref) == self._due]


def whose_turn(step: int, trained: Collection[str]) -> str:
    """The policy that a step trains."""
    names = sorted(trained, reverse=True)
    return names[(step - 1) % len(names)]


def _policy(groups: Sequence[Group], ref: RowRef) -> str:
    return groups[ref.group].trajectories[ref.trajectory].sequences[ref.sequence].policy
