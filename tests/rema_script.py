"""The two agents without a model: how good plans and solutions are is said."""

from __future__ import annotations

from dataclasses import dataclass

from scripted_engine import Reply

from marsrl_verl.algos.rema.prompts import META_THINKING
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.trajectory import FinishReason


@dataclass(frozen=True, slots=True)
class TwoAgents:
    """A script of plans and solutions; every reply is a function of (seed, group id, k) and of the plan that
    is followed. A good plan says so."""

    seed: int = 0
    good: float = 0.5
    """P(good plan)."""
    solves: float = 0.8
    """P(right answer | good plan)."""
    muddles: float = 0.2
    """P(right answer | other plan, or none)."""
    truncated: float = 0.05
    """P(cut off at the token limit), either agent."""
    leaks: float = 0.0
    """P(the plan says the answer)."""

    def __call__(self, item: RolloutRequest, k: int) -> Reply:
        """The reply number `k` to `item`."""
        rng = derive_generator(self.seed, item.group_id, k)
        if rng.random() < self.truncated:
            return Reply("on and on", FinishReason.LENGTH)
        if item.role == META_THINKING:
            quality = "good" if rng.random() < self.good else "odd"
            leak = f" The answer is {item.problem.ground_truth}." if rng.random() < self.leaks else ""
            return Reply(f"A {quality} plan, number {k}.{leak}")
        skill = self.solves if "good" in str(item.inputs.get("plan")) else self.muddles
        if rng.random() < skill:
            return Reply(f"So \\boxed{{{item.problem.ground_truth}}}.")
        return Reply(f"So \\boxed{{no, {rng.integers(3)}}}." if rng.random() < 0.7 else "I give up.")
