"""MarsRL whose policies take turns: that of the answers in odd steps, the judge in even ones."""

from __future__ import annotations

from marsrl_verl.algos.marsrl.method import MarsRL

JUDGE = "judge"


class TakingTurns(MarsRL):
    """`marsrl.algo.name=taking_turns:TakingTurns`."""

    def train_policies(self, step, trained):
        return frozenset(name for name in trained if (name == JUDGE) == (step % 2 == 0))

    def select(self, groups, step):
        rows = super().select(groups, step)
        judged = step % 2 == 0
        return [
            ref
            for ref in rows
            if (groups[ref.group].trajectories[ref.trajectory].sequence.policy == JUDGE) == judged
        ]
