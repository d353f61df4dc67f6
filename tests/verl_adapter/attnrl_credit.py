"""AttnRL's cases: trees of responses."""

from __future__ import annotations

import math

import numpy as np
from credit_cases import Case, Worth, counts, fate, length, new_sequence
from scheduler_tools import ShortPrompts, build

from marsrl_verl.algos.attnrl.method import INITIAL, AttnRL
from marsrl_verl.algos.attnrl.step_cutter import StepCutter
from marsrl_verl.core.reasoning_steps import TokenTexts
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler import StepResult
from marsrl_verl.core.trajectory import Trajectory

CUTTER = StepCutter(TokenTexts(lambda token: "a\n" if token % 2 else "a"))


def trees(**settings) -> AttnRL:
    usual = {"group_size": 3, "filter": "none", "criterion": "earliest", "expansion": "round"}
    one = build(AttnRL, ShortPrompts(), **usual | settings)
    one.responses.cutter, one.stores_trainer_log_probs = CUTTER, False
    return one


def grow(item: RolloutRequest, rng: np.random.Generator) -> list[Trajectory]:
    """First responses, or what follows a beginning."""
    found = []
    for k in range(item.n):
        more = new_sequence(item.role, rng, 1 + length(rng))
        if item.prefix is not None:
            ids, log_probs = more.response_ids, more.rollout_log_probs
            more = item.prefix.extend(ids, log_probs, version=0)
        found.append(Trajectory(f"{item.group_id}#{k}", [more], text="x", **fate(rng)))
    return found


def tree_worth(result: StepResult, *, train_unbranched: bool = True) -> Worth:
    """arXiv 2509.26628, eq. 2 and 3: V(s) is the mean over the leaves that share the token, the root's that
    of all leaves of the problem, whether they are trained or not."""
    found: Worth = {}
    by_problem: dict[str, list] = {}
    for group in result.trained:
        by_problem.setdefault(group.request.problem.problem_id, []).append(group)
    for groups in by_problem.values():
        members = [(group, one) for group in groups for one in group.trajectories if counts(one)]
        texts = {one.trajectory_id: tuple(one.sequences[0].response_ids.tolist()) for _, one in members}
        reward = {one.trajectory_id: one.reward.value for _, one in members}
        parents = {group.request.parent_id for group in groups}
        everybody = frozenset(texts)

        def value(leaves: frozenset[str], reward=reward) -> float:
            return sum(reward[one] for one in leaves) / len(leaves)

        for group, one in members:
            if not train_unbranched and group.request.stage == INITIAL and one.trajectory_id not in parents:
                continue
            text = texts[one.trajectory_id]
            at, above, worth = everybody, everybody, []
            for end in range(1, len(text) + 1):
                here = frozenset(name for name, other in texts.items() if other[:end] == text[:end])
                if here != at or end == 1:
                    at, above = here, at
                advantage = (value(here) - value(everybody)) + (value(here) - value(above))
                worth.append(advantage / math.sqrt(len(here)))
            if text:
                found[one.trajectory_id, 0] = worth
    return found


CASES = (
    Case("attnrl", trees, grow, tree_worth, by_group=False, leaves=True),
    Case(
        "attnrl_drops_unbranched",
        lambda: trees(train_unbranched=False),
        grow,
        lambda result: tree_worth(result, train_unbranched=False),
        by_group=False,
        leaves=True,
    ),
)
