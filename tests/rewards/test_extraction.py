import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.rewards.extraction import last_boxed, last_number, normal_form, references, same_answer


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{7}", "7"),
        (r"\boxed{1} then \boxed{ 2 }.", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {3}", "3"),
        (r"\fbox{3}", "3"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"} \boxed{6}", "6"),
        (r"\boxed{\text{if } \boxed{8}}", "8"),
        (r"\boxed{}", ""),
        ("no box", None),
        (r"\boxed 5", None),
    ],
)
def test_the_last_complete_box(text, expected):
    assert last_boxed(text) == expected


def test_the_last_number():
    assert last_number("3 apples and 1,234.5 pears.") == "1,234.5"
    assert last_number("it is -3.") == "-3"
    assert last_number("5-3") == "3"
    assert last_number("x = 3/4,") == "3/4"
    assert last_number("none") is None


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ("142\n", ["142"]),
        (r"\boxed{142}", ["142"]),
        ('["1/2", "0.5"]', ["1/2", "0.5"]),
        (r'["336^\\circ"]', [r"336^\circ"]),
        ("[1, 2]", ["[1, 2]"]),
        ("[0, 1)", ["[0, 1)"]),
        (r"[\frac12, 1]", [r"[\frac12, 1]"]),
        ("[]", ["[]"]),
        ("", []),
        ('["", " "]', []),
    ],
)
def test_references(truth, expected):
    assert references(truth) == expected


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
    ],
)
def test_answers_that_look_different_and_are_the_same(first, second):
    assert same_answer(first, second)
    assert same_answer(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [("12", "21"), ("1/2", "2"), ("(1,2)", "(2,1)"), ("50%", "50"), ("-1", "1"), ("1/0", "0")],
)
def test_answers_that_differ(first, second):
    assert not same_answer(first, second)


def test_normal_forms():
    assert normal_form("0.125") == Fraction(1, 8)
    assert normal_form("2^{10}") == "2^{10}"
    assert normal_form("9" * 300) == "9" * 300


def test_repetitive_text_is_searched_in_linear_time():
    start = time.perf_counter()
    for unit in (r"\boxed{", "{", "}", r"\text{", "1,", "1/", "^ ", "^" + " " * 50, "-", r"\frac{1}"):
        text = unit * 50_000
        last_boxed(text), last_number(text), normal_form(text)
    assert time.perf_counter() - start < 10


@given(st.text(alphabet="\\boxedfra{}1,2./-^ $", max_size=60))
def test_any_text_has_a_normal_form_equal_to_itself(text):
    assert same_answer(text, text)
    boxed = last_boxed(text)
    assert boxed is None or boxed in text
