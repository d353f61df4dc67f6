"""Evaluation of plan and solution: pairs in both orders, and leaks that nobody looked for."""

from __future__ import annotations

import pytest
from scheduler_tools import single_call

from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import PLAN, SOLUTION, Config
from marsrl_verl.algos.rema.single_turn.evaluation import SWAPPED, PlanAndSolve
from marsrl_verl.algos.rema.single_turn.judge import JudgePrompts, JudgeReward
from marsrl_verl.algos.rema.single_turn.plans import role_figures
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import FinishReason, RewardResult, RolloutOutput
from marsrl_verl.evaluation.runs import run_evaluation
from marsrl_verl.rewards.base import ScoreRequest

PAIR = Problem("p", "How high is it?", "A", extra_info={"answer_a": "324 m", "answer_b": "3 m"})
SAMPLING = {role: Sampling(100, 1000) for role in (META_THINKING, REASONING)}


class Saying:
    """Implements `RolloutEngine`: says at each stage what it is told; plans are rewarded with `info`."""

    def __init__(self, by_stage: dict[str, str], **info) -> None:
        self.by_stage, self.info, self.requests = by_stage, info, []

    def submit(self, requests, sampling) -> None:
        self.requests += requests

    def outputs(self) -> list[RolloutOutput]:
        pending, self.requests = self.requests, []
        return [RolloutOutput(one.group_id, [self._answer(one)]) for one in pending]

    def _answer(self, item):
        text = self.by_stage[item.stage]
        one = single_call(f"{item.group_id}#0", reward=0.0, role=item.role, text=text, final_text=text)
        if item.stage == PLAN:
            one.reward = RewardResult(0.0, self.info)
        else:
            name = f"{item.group_id}#0"
            pending = ScoreRequest(name, item.role, item.stage, item.problem, text, text, FinishReason.STOP)
            one.reward = JudgeReward().score(pending)
        return one


@pytest.mark.parametrize(
    ("first", "second", "both", "in_order", "agree"),
    [
        ("[[A]]", "[[B]]", 1.0, 1.0, 1.0),
        ("[[A]]", "[[A]]", 0.0, 1.0, 0.0),
        ("[[B]]", "[[B]]", 0.0, 0.0, 0.0),
        ("[[B]]", "[[A]]", 0.0, 0.0, 1.0),
        ("[[A]]", "I can't tell", 0.0, 1.0, 0.0),
    ],
)
def test_a_pair_is_solved_where_both_verdicts_are_right(first, second, both, in_order, agree):
    engine = Saying({PLAN: "Look at the height.", SOLUTION: first, SWAPPED: second})
    evaluation = PlanAndSolve(Config(), JudgePrompts(), both_orders=True)
    runs = run_evaluation(engine, evaluation, [PAIR], SAMPLING, repeats=1, tag="t")
    found = {name: one.mean for name, one in evaluation.observations(runs).items()}
    assert [one.solved for one in runs.runs] == [both == 1.0]
    assert (found["accuracy"], found["first_order_accuracy"], found["order_agreement"]) == (
        both, in_order, agree,
    )  # fmt: skip
    assert found.keys() == evaluation.metrics.keys()
    one_order = PlanAndSolve(Config(), JudgePrompts())
    runs = run_evaluation(engine, one_order, [PAIR], SAMPLING, repeats=1, tag="t")
    assert one_order.observations(runs)["accuracy"].mean == in_order


@pytest.mark.parametrize(("info", "share"), [({}, None), ({"leak": False}, 0.0), ({"leak": True}, 1.0)])
def test_a_leak_that_nobody_looked_for_is_no_figure(info, share):
    engine = Saying({PLAN: "Look at the height.", SOLUTION: "[[A]]"}, **info)
    evaluation = PlanAndSolve(Config(), MathPlanPrompts())
    runs = run_evaluation(engine, evaluation, [PAIR], SAMPLING, repeats=1, tag="t")
    assert evaluation.observations(runs)["leak_share"].mean == share
    groups = [Group(call.request, [call.trajectory]) for call in runs.calls]
    assert role_figures(groups).get("plan_leak_share") == share
