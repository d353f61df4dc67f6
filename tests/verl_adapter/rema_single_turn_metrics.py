"""A run of two agents in turns, with plans in JSON, that logs all of their metrics."""

from __future__ import annotations

import json
from typing import Any

from rema_script import TwoAgents
from scripted_engine import Reply, score_by_box
from test_metric_names import Engine as ScriptedEngine

from marsrl_verl.algos.rema.leak import PlanReward
from marsrl_verl.algos.rema.prompts import META_THINKING
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.rewards.base import ScoreRequest

SETTINGS = (
    "algo=rema_json",
    "model=tiny_rema",
    "data=rema_task",
    "data.train_batch_size=8",
    "data.train_max_samples=8",
    "marsrl.algo.episodes=1",
    "marsrl.algo.plans_per_problem=2",
    "marsrl.algo.leak_rule=value",
    "pipeline=sequential",
)
LIMITS = tuple(
    f"marsrl.roles.{role}.{limit}"
    for role in ("meta_thinking", "reasoning")
    for limit in ("max_prompt_tokens=2000", "max_new_tokens=90")
)
PLANS = PlanReward("marsrl_verl.rewards.exact:ExactAnswerReward")
AGENTS = TwoAgents(seed=1, leaks=0.2)
KINDS = ("DECOMPOSE", "REWRITE", "EMPTY", "SOLVE")


def script(item: RolloutRequest, k: int) -> Reply:
    """As two agents, with plans as actions, of which some are none."""
    reply = AGENTS(item, k)
    if item.role != META_THINKING:
        return reply
    kind = KINDS[derive_generator(7, item.group_id, k).integers(len(KINDS))]
    return Reply(json.dumps({"action": kind, "output": reply.text}), reply.finish_reason)


def score(item: RolloutRequest, one: Trajectory) -> RewardResult:
    """Plans are looked at for leaks, as in a run."""
    return PLANS.score(ScoreRequest.of(item, one)) if item.role == META_THINKING else score_by_box(item, one)


class Engine(ScriptedEngine):
    """Scores the two agents' responses each in its way."""

    def __init__(self, says: Any) -> None:
        super().__init__(says, scorer=score)
