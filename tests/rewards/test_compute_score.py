"""Functions in verl's form as rewards."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from reward_tools import request

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.compute_score import ComputeScoreReward
from marsrl_verl.rewards.running import RewardRunner

FUNCTIONS = """
from dataclasses import dataclass

@dataclass
class Seen:
    arguments: dict

CALLS = []

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    CALLS.append(Seen(dict(locals())))
    return solution_str.endswith(ground_truth)

async def later(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.5, "acc": False, "pred": 7}

def listed(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str in ground_truth and isinstance(ground_truth, list))

def without_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"acc": 1.0}

def not_finite(data_source, solution_str, ground_truth, extra_info=None):
    return float("nan")
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "scores.py"
    file.write_text(FUNCTIONS)
    return str(file)


def scored(path: str, name: str, one, **kwargs) -> RewardResult:
    return asyncio.run(RewardRunner(ComputeScoreReward(path, name, **kwargs)).score(one))


def test_the_function_gets_what_verl_gives_it(path):
    problem = Problem("p", "1 + 1", "2", data_source="sums", extra_info={"index": 3})
    one = replace(request("<think>x</think>so 2"), problem=problem, final_text="so 2")
    reward = ComputeScoreReward(path, "compute_score", {"weight": 2, "data_source": "mine"})
    assert asyncio.run(RewardRunner(reward).score(one)) == RewardResult(1.0)
    (seen,) = reward.function.__globals__["CALLS"]
    assert seen.arguments == {
        "data_source": "mine",
        "solution_str": "<think>x</think>so 2",
        "ground_truth": "2",
        "extra_info": {"index": 3, "num_turns": 2, "rollout_reward_scores": {}},
        "kwargs": {"weight": 2},
    }


def test_a_coroutine_and_a_dictionary(path):
    assert scored(path, "later", request("x")) == RewardResult(0.5, {"answer": "7"})


def test_several_accepted_answers_are_a_list(path):
    assert scored(path, "listed", request("b", '["a", "b"]')).value == 1.0
    assert scored(path, "listed", request("[1, 2]", "[1, 2]")).value == 0.0


@pytest.mark.parametrize(("name", "hint"), [("without_score", "without 'score'"), ("not_finite", "finite")])
def test_what_is_no_score_is_a_failed_grade(path, name, hint):
    result = scored(path, name, request("x"))
    assert not result.graded
    assert hint in result.error


def test_a_module_that_can_be_imported():
    reward = ComputeScoreReward("pkg://verl_form", "compute_score")
    assert asyncio.run(RewardRunner(reward).score(request("x"))) == RewardResult(0.25)
