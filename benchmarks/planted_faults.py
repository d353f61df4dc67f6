"""Three faults in short real runs, for whoever wants to see whether a run shows them (docs/guides/view.md).

    python -m benchmarks.planted_faults outputs/faults [--only mask reward leak]

mask     the response mask is shifted by a token: an agent's first token after a result is not trained, and
         the first token of each result is
reward   the Verifier's reward is always 0
leak     what the meta-thinking agent plans ends in the right answer

Each is a class of its own in place of the package's; the package has no switch for any.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.training_runs import train
from marsrl_verl.algos.arpo.method import ARPO
from marsrl_verl.algos.arpo.rollout import ToolTree
from marsrl_verl.algos.marsrl.verdict import VerdictReward
from marsrl_verl.algos.rema.single_turn.config import PLAN
from marsrl_verl.algos.rema.single_turn.method import ReMASingleTurn
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput
from marsrl_verl.rewards.base import ScoreRequest
from marsrl_verl.rollout.context import RolloutContext

_HERE = "benchmarks.planted_faults"
FAULTS = {
    "mask": (
        "algo=arpo",
        f"marsrl.algo.name={_HERE}:ShiftedMask",
        "model=tiny_tools",
        "data=tool_task",
        "marsrl.run.rollout_log.token_columns=[old_log_probs, rollout_log_probs, entropies]",
    ),
    "reward": (f"marsrl.reward.verifier.target={_HERE}:NoReward",),
    "leak": (
        "algo=rema_single_turn",
        f"marsrl.algo.name={_HERE}:LeakingPlanner",
        "model=tiny_rema",
        "data=rema_task",
        "pipeline=sequential",
        "policies=lora_per_role",
        "actor_rollout_ref.model.lora_rank=16",
        "actor_rollout_ref.actor.optim.lr=0.005",
        # A step for each agent, one after the other.
        "marsrl.algo.filter.enabled=false",
        "marsrl.algo.episodes=1",
        "data.train_max_samples=8",
    ),
}
"""Overrides of each run."""
_COMMON = ("trainer.save_freq=-1", "data.train_batch_size=8", "marsrl.run.if_exists=replace")


class ShiftedTree(ToolTree):
    """ARPO's rollout with a mask that comes a token late."""

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        found = await super().run(request, context)
        for sequence in (one for each in found.trajectories for one in each.sequences):
            mask = sequence.response_mask
            sequence.response_mask = np.concatenate([mask[:1], mask[:-1]])
        return found


class ShiftedMask(ARPO):
    """ARPO with that rollout."""

    @classmethod
    def stages(cls, config: Any) -> tuple[Stage, ...]:
        return tuple(replace(one, rollout=ShiftedTree) for one in super().stages(config))


class NoReward(VerdictReward):
    """A Verifier's reward that pays nothing."""

    def score(self, request: ScoreRequest) -> RewardResult:
        return replace(super().score(request), value=0.0)


class Telling:
    """A plan to which the right answer is added."""

    async def run(self, request: RolloutRequest, context: RolloutContext) -> RolloutOutput:
        begun = context.conversation(0, request.role, request.messages)
        plans = await begun.sample_n(request.n)
        for plan in plans:
            plan.append_text(f"\\boxed{{{request.problem.ground_truth}}}")
        ended = [plan.trajectory() for plan in plans]
        for one, reward in zip(ended, await context.score(ended), strict=True):
            one.reward = reward
        return RolloutOutput(request.group_id, ended)


class LeakingPlanner(ReMASingleTurn):
    """ReMA in a single turn with such plans."""

    @classmethod
    def stages(cls, config: Any) -> tuple[Stage, ...]:
        first, *others = super().stages(config)
        return (replace(first, rollout=Telling) if first.name == PLAN else first, *others)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, help="folder for the runs")
    parser.add_argument("--only", nargs="+", choices=tuple(FAULTS), default=tuple(FAULTS))
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    for name in given.only:
        steps = f"trainer.total_training_steps={given.steps}"
        print(train(given.root, name, *_COMMON, steps, *FAULTS[name]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
