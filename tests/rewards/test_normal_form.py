"""Answers in a normal form; more that differ in test_answer_cases.py."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.rewards.normal_form import elements, normal_form, same_answer


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("142.0", "142"),
        ("10{,}000", "10000"),
        ("10,000", "10000"),
        (r"336^\circ", "336"),
        (r"336^{\circ}", "336"),
        ("007", "7"),
        ("+5", "5"),
        (".5", r"\frac{1}{2}"),
        (r"\dfrac{2}{4}", "1/2"),
        (r"\frac12", "0.5"),
        (r"-\frac{1}{2}", "-1/2"),
        ("x = 5", "$5$"),
        (r"\left( 1,\, 2 \right)", "(1,2)"),
        (r"\text{Monday}", "Monday"),
        (r"50\%", "50 %"),
        (r"\$5", "5"),
        (r"1\,234", "1234"),
        (r"3\frac{1}{2}", "3.5"),
        ("1 1/2", "1.5"),
        (r"-3\dfrac{1}{2}", r"-\frac{7}{2}"),
        (r"I_{\text{max}} = 5", "5"),
        ("x = 5", "x=5.0"),
        (r"\{2, 1\}", r"\{1,2\}"),
        (r"\{2, 1\}", "1, 2"),
        ("3 and 5", "5, 3"),
        ("1,234 and 5", "5, 1234"),
        ("x=1, y=2", "y = 2, x = 1.0"),
        ("(1.0, 1/2)", r"(1, \frac12)"),
        (r"2 \pi", r"2\pi"),
    ],
)
def test_answers_that_look_different_and_are_the_same(first, second):
    assert same_answer(first, second) and same_answer(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("12", "21"),
        ("1/2", "2"),
        ("50%", "50"),
        ("-1", "1"),
        ("1/0", "0"),
        ("1 1/2", "11/2"),
        ("x=1, y=2", "2, 1"),
        ("3, 3", "3, 5"),
        (",", ",,"),
    ],
)
def test_answers_that_differ(first, second):
    assert not same_answer(first, second)


def test_normal_forms():
    texts = ("0.125", "2^{10}", "9" * 300)
    assert [normal_form(one) for one in texts] == [Fraction(1, 8), "2^{10}", "9" * 300]


def test_elements_of_lists():
    assert elements("(1, 2)") == ("()", ["1", "2"])
    assert elements(r"\{1\}") == (r"\{\}", ["1"])
    assert elements("(1,2), (3,4)") == ("", ["(1,2)", "(3,4)"])
    assert elements("(1,234)") == ("()", ["1", "234"])
    assert [elements(text) for text in ("1,234", "5", "(5)", "1,,2", "")] == [None] * 5


HOSTILE = [
    *("{", "}", "(", "[", ",", "1,", "1/", "^ ", "-", " ", "1 ", "=", "x=", "and ", "9", "$", "a_{", "x("),
    *(r"\text{", r"\boxed{", r"\frac{1}", r"\,", "\\", r"\{", "'", "(1,", r"\not", "٣"),
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("characters", [1_900, 100_000])
def test_hostile_answers_take_little_time(unit, characters):
    text = unit * (characters // len(unit))
    for hostile in ("1" + text, r"x=\text{" + text, "(" + text + "}"):
        start = time.perf_counter()
        normal_form(hostile), elements(hostile)
        same_answer(hostile, hostile + "2"), same_answer(hostile, "7")
        assert time.perf_counter() - start < 3


@given(st.text(alphabet="\\boxedfra{}1,2./-^ $=()", max_size=60))
def test_any_text_has_a_normal_form_equal_to_itself(text):
    assert same_answer(text, text)
