"""Answers but for their units, percent signs and bases; more of them in test_answer_cases.py."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.rewards.bare_answer import bases_differ, same_bare_answer, units_differ
from marsrl_verl.rewards.normal_form import same_answer


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"5 \, \mathrm{cm}^2", "5"),
        ("30 minutes", "30"),
        ("3 square feet", "3"),
        (r"\frac{1}{2}\text{ inch}", "0.5"),
        ("5 cm", "5 centimetres"),
        (r"(1.0\text{ m}, \frac{1}{2})", "(1, 0.5)"),
        (r"((1,2),3\text{ m})", "((1,2),3)"),
    ],
)
def test_answers_that_differ_in_dress_only(first, second):
    assert same_bare_answer(first, second)
    assert same_bare_answer(second, first)
    assert not same_answer(first, second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (r"5\text{ squared}^2", "5"),
        (r"5\text{ or }7", "5"),
        ("5m", "5"),
        ("10_2", "11"),
        ("12_2", "4"),
        ("12m", "12n"),
        (r"3\frac{1}{0}", "3"),
        ("(1,2),(3,4)", "(1,3)"),
        ("\\text{cm}", ""),
        ("", ""),
        ("%", ""),
    ],
)
def test_answers_that_stay_apart(first, second):
    assert not same_bare_answer(first, second) and not same_bare_answer(second, first)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_can_be_compared(first, second):
    if "_" not in first + second and "%" not in first + second and "percent" not in first + second:
        assert same_bare_answer(first, second) == same_bare_answer(second, first)
    assert not same_bare_answer(first, "")


@given(st.integers(-999, 999), st.sampled_from([" cm", r"\text{ apples}", r"^\circ", r"\mathrm{m}"]))
def test_a_numbers_unit_does_not_matter(number, unit):
    assert same_bare_answer(f"{number}{unit}", str(number))
    assert not same_bare_answer(f"{number}{unit}", str(number + 1))


@pytest.mark.parametrize(
    ("answer", "reference"), [("10", "10 %"), ("12.5", "12.5 percent"), ("[0,10)", r"\left[0, 10\%\right)")]
)
def test_a_percent_sign_may_be_left_out_where_the_reference_has_it(answer, reference):
    assert same_bare_answer(answer, reference) and same_bare_answer(reference, reference)
    assert not same_bare_answer(reference, answer)


def test_a_base_may_be_left_out_where_the_reference_has_it():
    assert same_bare_answer("1011", "1011_2")
    assert not same_bare_answer("10_2", "10") and bases_differ("10_2", "10")
    assert not bases_differ("10_2", "2") and not bases_differ("1011", "1011_2")


def test_a_missing_unit_differs_from_none_and_an_unknown_one_from_others():
    assert units_differ("5 cm", "5 m") and units_differ(r"5\%", r"5\text{ kg}")
    assert units_differ("5 cm", r"5\text{ apples}") and units_differ(r"\$5", r"5\text{ cents}")
    assert not units_differ("5 cm", "5") and not units_differ(r"5\text{ red apples}", r"5\text{ apple}")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 20_000 + ",",
        "1 " * 20_000 + "cm",
        "{" * 9_999 + "%" * 9_999,
        r"5\text{" + " " * 1_900,
        "5" + " " * 1_900 + "^",
        "9" * 1_900 + "_2",
        "5" + "^2" * 900,
    ],
)
def test_long_answers_take_no_time(text):
    """More of them in test_grade_pool.py."""
    start = time.monotonic()
    assert not same_bare_answer(text, "7")
    assert time.monotonic() - start < 2.0
