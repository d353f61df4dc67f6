"""The released formula, holes included (values computed by hand from its rules)."""

from __future__ import annotations

import pytest
from reward_tools import request

from marsrl_verl.algos.arpo.released_reward import ReleasedReward, released_f1

THOUGHT = "<think>a</think>"


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("3", "-3", 1.0),
        ("1.5", "15", 1.0),
        ("\\frac{12}{3}", "\\frac{1}{23}", 1.0),
        ("0.5", "\\frac{1}{2}", 0.0),
        ("A", "A", 0.0),
        ("3\\sqrt{3} - 6", "3\\sqrt{3}-6", 0.0),
        ("The Big Apple", "big apple", 1.0),
        ("no", "no doubt", 0.0),
        ("No.", "no", 1.0),
        ("red red blue", "red green", 2 / 5),
        ("", "x", 0.0),
    ],
)
def test_f1(answer, gold, value):
    assert released_f1(answer, gold) == pytest.approx(value)


def response(answer: str, middle: str = "", end: str = "") -> str:
    return f"{THOUGHT}{middle}<answer>\\boxed{{{answer}}}</answer>{end}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (response("red"), 1.0),
        (response("blue"), 0.0),
        (response("red blue"), 2 / 3),
        (response("red", "<search>x</search><result>y</result><python>1</python><result>1</result>"), 1.1),
        # Any common word earns the bonus, and so do closing tags without a call.
        (response("red blue", "</search></python>"), 2 / 3 + 0.1),
        (response("blue", "</search></python>"), 0.0),
        # One result may serve two calls.
        (response("red", "<search>x<python>1</python></search><result>1</result>"), 1.1),
        (response("red", "<search>x</search>"), -1.0),
        (response("red", "<search>x<result>1</result>"), -1.0),
        (response("red", end=" and more"), 1.0),
        ("</think><think><answer>\\boxed{red}</answer>", 1.0),
        ("<answer>\\boxed{red}</answer>", -1.0),
        (f"{THOUGHT}<answer>red</answer>", -1.0),
        (f"{THOUGHT}<answer>\\boxed red}}</answer>", -1.0),
        (f"{THOUGHT}<answer>\\boxed{{red</answer>", -1.0),
        (response("red", "<result><answer></result>"), -1.0),
        (f"{THOUGHT}<think><answer>\\boxed{{red}}</answer>", -1.0),
        (f"{THOUGHT}<answer>\\boxed{{a}} \\boxed{{\\text{{red}}}}</answer>", 0.0),
    ],
)
def test_the_formula(text, value):
    assert ReleasedReward().score(request(text, "red")).value == pytest.approx(value)


def test_the_best_of_several_golds():
    assert ReleasedReward().score(request(response("red"), '["blue", "red"]')).value == 1.0


def test_a_response_that_was_cut_off_keeps_what_it_earns():
    assert ReleasedReward.pays_unfinished
