"""GRPO's cases."""

from __future__ import annotations

from credit_cases import Case, Worth, answers, counts, whitened_returns, worth_of_groups
from scheduler_tools import ShortPrompts, build

from marsrl_verl.algos.grpo.method import GRPO
from marsrl_verl.core.scheduler import StepResult


def whitened(result: StepResult) -> Worth:
    """REINFORCE++: the reward is the return of all tokens, whitened over the step."""
    members = [one for group in result.completed for one in group.trajectories]
    rows = {
        (one.trajectory_id, 0): [(one.reward.value, 1.0)] * len(one.sequences[0])
        for one in members
        if counts(one) and len(one.sequences[0])
    }
    return whitened_returns(rows)


CASES = (
    Case("grpo", lambda: build(GRPO, ShortPrompts(), group_size=4), answers, worth_of_groups),
    Case(
        "grpo_reinforce_pp",
        lambda: build(GRPO, ShortPrompts(), group_size=4, estimator="reinforce_pp"),
        answers,
        whitened,
        by_group=False,
    ),
)
