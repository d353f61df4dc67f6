"""What solutions and plans are worth, by hand."""

from __future__ import annotations

import gc
import random
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import single_call

from marsrl_verl.algos.rema.single_turn import rewards
from marsrl_verl.algos.rema.single_turn.method import ReMASingleTurn
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.algos.rema.single_turn.rewards import (
    PARALLEL,
    AnswerEquality,
    SolutionValues,
    answer_counts,
    consistencies,
    consistency,
    definite_answer,
    solution_reward,
    tells_answers,
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


def test_what_text_and_grades_tell_is_not_asked():
    """Of the wrong answers three are one by text, and one is a number that no text makes another one."""
    asked = []

    def same(first, second):
        asked.append({first, second})
        return {first, second} == {r"\sqrt{8}", r"2\sqrt{2}"}

    plan = [("7", True), ("7.0", True), ("seven", True), (r"\sqrt{8}", False), (r"2\sqrt{2}", False)]
    more = [("1/2", False), ("0.5", False), (None, False)]
    assert consistencies([plan, more], same, one_reference=True) == [3 / 5, 2 / 3]
    assert asked == [{r"\sqrt{8}", r"2\sqrt{2}"}], "correct ones are one, and none is a wrong one"
    assert consistencies([plan], same, one_reference=False) == [2 / 5], "two right answers may be two"


def test_an_answer_is_correct_where_any_grade_says_so_in_whatever_order():
    solutions = [("a+b", True), ("a+b", False), ("b+a", True)]
    for order in (solutions, solutions[::-1], solutions[1:] + solutions[:1]):
        assert consistencies([order], lambda *_: False, one_reference=True) == [1.0]


def test_a_comparison_that_fails_ends_no_run(monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(
        rewards, "_LOG", SimpleNamespace(warning=lambda text, *values: warnings.append(text % values))
    )
    same = AnswerEquality(
        RewardSpec(
            target="marsrl_verl.rewards.math_verify:MathVerifyReward",
            kwargs={"grader": "marsrl_verl.rewards.normal_form:no_such_function"},
        )
    )
    assert not same("a+b", "b+a") and "'a+b' and 'b+a' count as two" in warnings[0]
    same.close()


def test_plans_are_compared_at_the_same_time_and_not_all_of_them():
    """Each comparison waits until as many as may be are under way."""
    barrier, most, running, lock = threading.Barrier(PARALLEL, timeout=20), [0], [0], threading.Lock()

    def same(first, second):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        barrier.wait()
        with lock:
            running[0] -= 1
        return False

    plans = [[("a+b", False), ("b+a", False)]] * (2 * PARALLEL)
    assert consistencies(plans, same, one_reference=True) == [0.5] * len(plans)
    assert most[0] == PARALLEL


def test_what_a_comparison_opened_is_closed():
    same = AnswerEquality(RewardSpec(target="marsrl_verl.rewards.math_verify:MathVerifyReward"))
    pool = same._grader.pool
    assert same(r"\sqrt{8}", r"2\sqrt{2}") and pool._server is not None
    same.close()
    assert pool._server is None
    assert same(r"\sqrt{18}", r"3\sqrt{2}") and pool._server is not None
    pool.close()
    other = AnswerEquality(RewardSpec(target="marsrl_verl.rewards.math_verify:MathVerifyReward"))
    pool = other._grader.pool
    assert not other("a+b", "a-b") and pool._server is not None
    del other
    gc.collect()
    assert pool._server is None, "with the object, where nobody closed it"


def test_a_correct_solution_without_an_answer_is_an_error():
    told = RewardResult(1.0, {"correct": True, "has_answer": True, "answer": "7"})
    assert definite_answer(told) == "7"
    assert definite_answer(RewardResult(0.0, {"correct": False, "has_answer": True})) is None
    assert definite_answer(RewardResult(0.0, {"correct": False, "has_answer": False, "answer": "7"})) is None
    with pytest.raises(ValueError, match=r"info\['answer'\] of the result of marsrl.reward.reasoning"):
        definite_answer(RewardResult(1.0, {"correct": True, "has_answer": True}))


@pytest.mark.parametrize(
    ("target", "kwargs", "told"),
    [
        ("marsrl_verl.rewards.hybrid:HybridReward", {}, True),
        ("marsrl_verl.algos.rema.single_turn.judge:JudgeReward", {}, True),
        ("marsrl_verl.rewards.by_ability:RewardByAbility", {}, True),
        ("marsrl_verl.algos.rema.leak:PlanReward", {}, False),
        ("nowhere:Nothing", {}, True),
    ],
)
def test_whether_a_reward_says_what_was_answered(target, kwargs, told):
    assert tells_answers(RewardSpec(target=target, kwargs=kwargs)) is told


def test_a_run_looks_at_the_actions_of_plans():
    one = single_call("g#0", reward=1.0)
    assert ReMASingleTurn.outcome(None, one) is None
    one.reward = RewardResult(1.0, {"action": "EMPTY"})
    assert ReMASingleTurn.outcome(None, one) == ("EMPTY", None)
