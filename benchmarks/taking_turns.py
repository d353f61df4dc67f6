"""MarsRL whose policies take turns, step by step: for runs that look at what one policy's step does."""

from __future__ import annotations

from collections.abc import Collection

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.core.schedule import Schedule, Trained


class Turns(Schedule):
    """The policies in turn; the last one by name begins."""

    def trained(self, step: int) -> Trained:
        """The policy whose turn the step is."""
        return Trained(policies=frozenset({whose_turn(step, set(self.tools.policies.values()))}))


class TakingTurns(MarsRL):
    """`marsrl.algo.name=benchmarks.taking_turns:TakingTurns`."""

    Schedule = Turns


def whose_turn(step: int, trained: Collection[str]) -> str:
    """The policy that a step trains."""
    names = sorted(trained, reverse=True)
    return names[(step - 1) % len(names)]
