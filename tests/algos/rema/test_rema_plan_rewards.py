"""What solutions and plans are worth, by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import single_call

from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.algos.rema.single_turn.rewards import (
    AnswerEquality,
    PenaltyMode,
    SolutionValues,
    answer_counts,
    consistency,
    mean_correctness,
    penalised,
    solution_reward,
)
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.settings.declaration import RewardSpec

HAS_ANSWER = MathPlanPrompts().has_answer


@pytest.mark.parametrize(
    ("graded", "text", "finish", "value"),
    [
        (1.0, r"so \boxed{7}", FinishReason.STOP, 1.0),
        (0.0, r"so \boxed{8}", FinishReason.STOP, -0.5),
        (0.0, "so it is 8", FinishReason.STOP, -1.0),
        (0.0, r"so \boxed{8", FinishReason.STOP, -1.0),
        (0.0, "", FinishReason.STOP, -1.0),
        (0.0, r"put it in \boxed{}", FinishReason.STOP, -1.0),
        (0.0, r"so \boxed{ }", FinishReason.STOP, -1.0),
        (0.0, r"so \boxed{8} in a \boxed{}", FinishReason.STOP, -0.5),
        (0.0, r"\boxed{7} and on", FinishReason.LENGTH, -1.0),
        (1.0, r"\boxed{7} and on", FinishReason.LENGTH, -1.0),
    ],
)
def test_a_solution_by_correctness_and_format(graded, text, finish, value):
    one = single_call("g#0", reward=graded, finish=finish, text=text, final_text=text)
    found = solution_reward(one, SolutionValues(), HAS_ANSWER)
    assert found.value == value
    assert found.info["correct"] == (value == 1.0) and found.info["has_answer"] == (value > -1.0)


def test_what_says_nothing_about_a_solution_stays():
    failed = single_call("g#0", reward=0.0, finish=FinishReason.ERROR)
    assert solution_reward(failed, SolutionValues(), HAS_ANSWER) is failed.reward
    ungraded = single_call("g#0", reward=None)
    ungraded.reward = RewardResult(0.0, error="the grader fell", graded=False)
    assert solution_reward(ungraded, SolutionValues(), HAS_ANSWER) is ungraded.reward


def test_the_share_of_correct_solutions():
    assert mean_correctness([True, False, True, True]) == 0.75


@pytest.mark.parametrize(
    ("answers", "value"),
    [
        (["7", "7", "8", "7"], 0.75),
        (["7", "8", "9", "1"], 0.25),
        (["0.5", r"\frac{1}{2}", "1/2", "2"], 0.75),
        (["7", None, "7", None], 0.5),
        (["7", None, None, "7", None], 0.0),
        ([None, None], 0.0),
        (["7"], 1.0),
    ],
)
def test_consistency_counts_the_most_frequent_answer(answers, value):
    assert consistency(answers) == value


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    none=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_consistency_depends_neither_on_order_nor_on_wording(counts, none, seed):
    wordings = [[f"{k}", f"{k}.0", rf"\frac{{{2 * k}}}{{2}}", f"x = {k}"] for k in range(1, len(counts) + 1)]
    rng = random.Random(seed)
    answers = [rng.choice(wordings[k]) for k, count in enumerate(counts) for _ in range(count)]
    answers += [None] * none
    rng.shuffle(answers)
    expected = 0.0 if 2 * none > len(answers) else max(counts) / len(answers)
    assert consistency(answers) == pytest.approx(expected)
    assert sorted(count for _, count in answer_counts(answers)) == sorted(one for one in counts if one)


def test_a_penalty_replaces_or_adds():
    assert penalised(0.75, -1.0, PenaltyMode.REPLACE) == -1.0
    assert penalised(0.75, -1.0, PenaltyMode.ADD) == -0.25


def test_answers_are_compared_by_the_reward_that_grades_them():
    exact = AnswerEquality(RewardSpec(target="marsrl_verl.rewards.exact:ExactAnswerReward"))
    assert exact("1/2", "0.5") and not exact(r"\sqrt{8}", r"2\sqrt{2}")
    other = AnswerEquality(RewardSpec(target="marsrl_verl.algos.rema.single_turn.judge:JudgeReward"))
    assert other("A", "A") and not other("A", "B")


def test_a_comparison_is_made_once():
    same = AnswerEquality(RewardSpec(target="marsrl_verl.rewards.exact:ExactAnswerReward"))
    calls = []
    grade = same._grader.grade
    same._grader.grade = lambda text, references: calls.append(text) or grade(text, references)
    for first, second in (("a+b", "b+a"), ("b+a", "a+b"), ("a+b", "b+a")):
        assert not same(first, second)
    assert len(calls) == 1
