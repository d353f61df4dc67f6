"""Rewards of one's own: what docs/guides/rewards.md shows, and functions in verl's form."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from reward_tools import request

from marsrl_verl.core.request import Problem
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.compute_score import ComputeScoreReward
from marsrl_verl.rewards.running import RewardRunner

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runner(monkeypatch):
    """The reward as a user's module, constructed as the configuration does it."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    return RewardRunner.load("solver", "own_reward:WithinTolerance", {"tolerance": 0.01}, 60.0)


@pytest.mark.parametrize(
    ("text", "truth", "reward"),
    [
        ("7 + 5 is 12, so the answer is \\boxed{12}", "12", 1.0),
        ("\\boxed{3.149}", "3.14", 1.0),
        ("\\boxed{3.16}", "3.14", 0.0),
        ("\\boxed{\\frac{1}{3}}", "0.333", 1.0),
        ("\\boxed{1,000}", '["999", "1000"]', 1.0),
        ("\\boxed{twelve}", "12", 0.0),
        ("the answer is 12", "12", 0.0),
    ],
)
def test_it_scores_whole_solutions(runner, text, truth, reward):
    result = asyncio.run(runner.score(request(text, truth)))
    assert (result.value, result.graded, result.error) == (reward, True, None)


def test_a_reference_that_it_can_not_read_is_a_failed_grade(runner):
    result = asyncio.run(runner.score(request("\\boxed{12}", "twelve")))
    assert not result.graded
    assert "the reference 'twelve' is no number" in result.error


def test_the_page_shows_the_example():
    example = (ROOT / "examples" / "own_reward.py").read_text()
    page = (ROOT / "docs" / "guides" / "rewards.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert shown == example.partition('"""\n\n')[2]
    assert len(example.splitlines()) <= 40


# --- functions in verl's form ----------------------------------------------------------------------------

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
