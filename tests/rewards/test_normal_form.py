"""Answers in a normal form, and without units, percent signs and bases; more that differ in
test_answer_cases.py."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.rewards.bare_answer import bases_differ, same_bare_answer, units_differ
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


# --- without units, percent signs and bases -----------------------------------------------------------------


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
