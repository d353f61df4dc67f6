"""Figures of agents and trees; what an evaluation counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from agent_scripts import LIMITS, AgentClient, FakeTools, call
from hypothesis import given
from hypothesis import strategies as st
from scripted_client import run_once
from tree_groups import agent_request, config, runner_settings

from marsrl_verl.algos.arpo.advantages import NODE
from marsrl_verl.algos.arpo.figures import ROOTS, AgentEvaluation, agent_metrics, executed
from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.algos.arpo.rollout import PROGRAM
from marsrl_verl.core.group import Group
from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.evaluation.runs import Call, Run, Runs


def says(k: int, turn: int) -> str:
    head = "ok. " if turn == 0 else f"?{k}?? "
    return head + (call("python", "x") if turn < 2 and k != 1 else "it is.</s>")


@pytest.fixture(scope="module")
def group() -> Group:
    """Root 0 with two results and forks of it, root 1 without a call, and further roots."""
    one = config(group_size=6, branching={"roots": 2})
    found = run_once(
        AgentClient(says=says), agent_request(6), {"solver": LIMITS}, **runner_settings(one, FakeTools())
    )
    for member in found.trajectories:
        member.reward = RewardResult(float(member.number in (0, 1)))
    item = agent_request(6)
    return Group(replace(item, inputs={**item.inputs, ROOTS: 2}), found.trajectories)


def test_shared_calls_count_once(group):
    forks = [one for one in group.trajectories if one.fork]
    assert forks
    found = agent_metrics([group])
    ran = sum(len(executed(one)) for one in group.trajectories)
    assert (
        found["executed_calls"] == found["executed_calls_per_group"] == found["executed_calls/python"] == ran
    )
    seen = sum(len(one.events) for one in group.trajectories)
    assert seen > ran and found["calls_per_trajectory"] == seen / 6
    assert found["executed_calls_per_right"] == ran / 2
    assert found["using_tools_frac"] == pytest.approx(5 / 6)
    assert (found["call_outcome/ok"], found["call_outcome/refused"]) == (1.0, 0.0)


def test_roots_forks_and_what_they_share(group):
    found = agent_metrics([group])
    forks = sum(one.fork is not None for one in group.trajectories)
    assert (found["roots_per_group"], found["forks_per_group"]) == (2, forks)
    assert found["further_roots_per_group"] == 6 - 2 - forks > 0
    assert found["fork_depth_max"] == 2, "a fork of a fork"
    nodes = {}
    for one in group.trajectories:
        chosen = one.sequence.response_mask == 1
        nodes |= dict(
            zip(*np.unique(one.sequence.annotations[NODE][chosen], return_counts=True), strict=True)
        )
    rows = sum(one.sequence.trained_tokens for one in group.trajectories)
    assert found["shared_token_frac"] == pytest.approx(1 - sum(nodes.values()) / rows)


def test_decisions_are_those_of_who_made_them(group):
    found = agent_metrics([group])
    decided = [
        event
        for one in group.trajectories
        for event in one.events
        if event["by"] == one.number and "forks_wanted" in event
    ]
    assert found["fork_decisions"] == len(decided)
    shares = [value for name, value in found.items() if name.startswith("entropy_change/")]
    assert sum(shares) == pytest.approx(1.0) and len(shares) == 10
    assert found["entropy_rises_frac"] == 1.0 and found["fork_wanted_frac"] == 1.0
    forks = sum(one.fork is not None for one in group.trajectories)
    assert found["fork_granted_frac"] == forks / sum(event["forks_wanted"] for event in decided)


def test_nothing_observed():
    assert agent_metrics([]) == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=12))
def test_calls_per_solved_problem(runs):
    made = []
    for number, (calls, right) in enumerate(runs):
        run = Run(Problem(f"p{number % 4}", "?", "1"), number // 4, final_reward=float(right))
        one = Trajectory("p#0", [], FinishReason.STOP, "x")
        one.events = [{"executed": True, "by": 0}] * calls + [{"executed": False, "by": 0}]
        run.calls.append(Call(agent_request(1), one))
        made.append(run)
    evaluation = AgentEvaluation("solver", ProblemPrompts(), PROGRAM, "tags")
    found = evaluation.effort(Runs("before", made), 0.95)
    total, solved = sum(calls for calls, _ in runs), sum(right for _, right in runs)
    assert found["tool_calls"].mean == pytest.approx(total / len(runs))
    ratio = found["tool_calls_per_solved"]
    assert ratio.mean == (pytest.approx(total / solved) if solved else None)
    if ratio.low is not None:
        assert ratio.low <= ratio.mean <= ratio.high


def test_an_evaluation_asks_for_one_trajectory():
    evaluation = AgentEvaluation("solver", ProblemPrompts(), PROGRAM, "tags")
    request = next(evaluation.program(Run(Problem("p", "?", "1"), 0, "eval")))
    assert (request.n, request.rollout, request.inputs) == (1, PROGRAM, {"protocol": "tags"})


@pytest.mark.parametrize(
    ("value", "bonus", "solved"), [(0.55, 0.1, False), (1.1, 0.1, True), (0.6, 0.0, True)]
)
def test_a_bonus_makes_no_answer_right(value, bonus, solved):
    run = Run(Problem("p", "?", "1"), 0, "eval")
    program = AgentEvaluation("solver", ProblemPrompts(), PROGRAM, "tags").program(run)
    next(program)
    (one,) = run_once(
        AgentClient(says=lambda k, turn: "it is.</s>"),
        agent_request(1),
        {"solver": LIMITS},
        **runner_settings(config(group_size=2, branching={"roots": 1}), FakeTools()),
    ).trajectories
    one.reward = RewardResult(value, {"bonus": bonus})
    with pytest.raises(StopIteration):
        program.send(one)
    assert run.solved is solved


def test_worked_examples_stand_behind_what_explains_the_tools():
    prompts = AgentPrompts(tools=("python",), examples={"problem": [{"question": "1 + 1?", "answer": "2"}]})
    roles = [message["role"] for message in prompts.problem(Problem("p", "2 + 2?", "4"))]
    assert roles == ["system", "user", "assistant", "user"]
