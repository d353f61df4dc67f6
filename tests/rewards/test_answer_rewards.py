"""Rewards for an answer; numbers that differ for certain are told apart without algebra."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_verify import verify
from reward_tools import request

from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.rewards.exact import ExactAnswerReward
from marsrl_verl.rewards.hybrid import HybridReward
from marsrl_verl.rewards.math_grading import _are_apart, _parse, _parse_answer, grade
from marsrl_verl.rewards.math_verify import MathVerifyReward


@pytest.mark.parametrize(
    ("text", "truth", "reward"),
    [
        (r"so \boxed{2}", "2", 1.0),
        (r"so \boxed{2.0}", "2\n", 1.0),
        (r"first \boxed{2}, no, \boxed{3}", "2", 0.0),
        (r"\boxed{1/2}", '["7", "0.5"]', 1.0),
        ("it is 2", "2", 0.0),
    ],
)
def test_exact_answers(text, truth, reward):
    assert ExactAnswerReward().score(request(text, truth)).value == reward


def test_the_last_number_counts_only_when_it_is_allowed():
    text, lenient = "Adding, we get 1 + 1 = 2.", ExactAnswerReward(allow_last_number=True)
    assert ExactAnswerReward().score(request(text)) == RewardResult(0.0)
    assert lenient.score(request(text)) == RewardResult(1.0, {"answer": "2"})
    # A box goes before any number.
    assert lenient.score(request(r"\boxed{3}, not 2")).value == 0.0


@pytest.mark.parametrize("reward", [ExactAnswerReward(), MathVerifyReward(grader="builtins:undefined")])
def test_unfinished_and_empty_answers_are_not_graded(reward):
    right = r"\boxed{2}"
    for reason in FinishReason:
        if reason is not FinishReason.STOP:
            assert reward.score(request(right, reason=reason)) == RewardResult(0.0)
    # The box stands in the reasoning, which never ended.
    assert reward.score(request("<think>" + right, final_text="")) == RewardResult(0.0)


def test_the_hybrid_asks_math_verify_only_where_texts_differ():
    # A grader that does not exist would fail; texts that say the same never reach it.
    assert HybridReward(grader="builtins:undefined").score(request(r"\boxed{2}")).value == 1.0
    found = HybridReward(grader="builtins:undefined").score(request(r"\boxed{2\text{ cm}}"))
    assert (found.value, found.info["answer"]) == (1.0, r"2\text{ cm}")


@pytest.mark.parametrize("reward", [ExactAnswerReward(), MathVerifyReward(), HybridReward()])
@pytest.mark.parametrize("answer", ["2", r"\sqrt{x}"])
def test_where_nobody_knows_the_answer_it_is_read_and_not_graded(reward, answer):
    asked = request(rf"so \boxed{{{answer}}}", "")
    asked = replace(asked, problem=replace(asked.problem, has_reference=False))
    assert reward.score(asked) == RewardResult(0.0, {"answer": answer}, graded=False)


def test_an_empty_ground_truth_is_an_error():
    with pytest.raises(ValueError, match="problem p: the ground truth is empty"):
        ExactAnswerReward().score(request(r"\boxed{2}", " "))


@pytest.mark.parametrize(
    ("text", "references", "correct"),
    [
        (r"so the angle is $\boxed{336^\circ}$.", ["336"], True),
        (r"\boxed{\dfrac{3}{6}}", ["7", r"\frac{1}{2}"], True),
        ("The final answer is 12.", ["12"], True),
        (r"We get \boxed{5}, but \boxed{3} is right.", ["5"], False),
        ("I do not know.", ["5"], False),
        (r"\boxed{5}", [r"\frac{"], False),
    ],
)
def test_verdicts(text, references, correct):
    """More of them in test_answer_cases.py."""
    assert grade(text, references)["correct"] is correct


def test_the_extracted_answer_is_reported():
    assert grade(r"\boxed{ 5 }", ["6"])["answer"] == "5"
    assert grade("The final answer is 12.", ["6"])["answer"] == "12"


SMALL = st.integers(-12, 12)
NUMBERS = st.one_of(
    SMALL.map(str),
    st.integers(-(10**30), 10**30).map(str),
    st.tuples(SMALL, st.integers(1, 9)).map(lambda n: rf"\frac{{{n[0]}}}{{{n[1]}}}"),
    st.tuples(SMALL, st.integers(1, 30)).map(lambda n: rf"{n[0]}+\sqrt{{{n[1]}}}"),
    st.tuples(st.integers(1, 9), SMALL).map(lambda n: rf"{n[0]}\pi{n[1]:+}"),
    st.tuples(st.integers(1, 5), st.integers(-9, 9)).map(lambda n: rf"{n[0]}^{{{n[1]}}}"),
    st.integers(-2000, 2000).map(lambda n: str(n / 100)),
    st.integers(-200, 200).map(lambda n: rf"{n}\%"),
    st.integers(1, 9).map(lambda n: rf"\sin({n})^2+\cos({n})^2"),
    st.integers(1, 9).map(lambda n: rf"{n}+2i"),
)


@given(NUMBERS, NUMBERS)
def test_what_is_apart_is_unequal_to_math_verify(one, other):
    gold, parsed = _parse_answer(one)[0], _parse_answer(other)[0]
    if _are_apart(gold, parsed):
        assert not verify(gold, parsed, timeout_seconds=0, raise_on_error=True)


@given(st.from_regex(r"-?[0-9]{1,20}", fullmatch=True))
def test_an_integer_is_read_as_math_verify_reads_it(text):
    assert _parse_answer(text) == _parse(rf"\boxed{{{text}}}")


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (r"\frac{1000+\sqrt{1000001}}{2}", "1000", True),
        (r"\frac{1000+\sqrt{1000000}}{2}", "1000", False),
        (r"\sin(1)^2+\cos(1)^2", "1", False),
        (r"\sin(1)^2+\cos(1)^2", "2", True),
        ("10^{30}+1", "10^{30}", True),
        ("2^{2023}", r"2 \cdot 2^{2022}", False),  # sympy finds a difference, all of whose digits are wrong
        (r"\frac{1}{3}", "0.33", False),  # math-verify rounds decimals
        (r"50\%", "50", False),  # which it takes for one answer
        ("x", "1", False),
        ("1, 2", "3", False),
        (r"\infty", "3", False),
    ],
)
def test_what_is_apart(one, other, apart):
    assert _are_apart(_parse_answer(one)[0], _parse_answer(other)[0]) is apart
