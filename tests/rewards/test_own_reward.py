"""The reward of one's own that docs/own_reward.md shows: it is the example's file, it loads and it scores."""

import asyncio
import re
from pathlib import Path

import pytest
from reward_tools import request

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
    page = (ROOT / "docs" / "own_reward.md").read_text()
    shown = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert shown == example.partition('"""\n\n')[2]
    assert len(example.splitlines()) <= 40
