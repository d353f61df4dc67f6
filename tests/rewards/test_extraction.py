import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.rewards.extraction import boxed_answer, last_number, references


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
        (r"\boxed{}", ""),
        ("no box", None),
        (r"\boxed 5", None),
    ],
)
def test_the_last_complete_box(text, expected):
    found = boxed_answer(text)
    assert (None if found is None else found.text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{3} (if we count twice, as one may) and \boxed{5}", "3, 5"),
        (r"\boxed{3}" + ", " * 40 + r"\boxed{6}", "6"),
        (r"\boxed{3} so \boxed{6}", "6"),
        (r"\boxed{3}. Wait, \boxed{6}", "6"),
        (r"\boxed{3}, \boxed{5} or \boxed{7}", "3, 5, 7"),
        (r"\boxed{0.5} = \boxed{1/2}", "1/2"),
        (r"\boxed{x} = \boxed{5}", "x=5"),
        (r"\boxed{\boxed{1}, \boxed{2}}", "1, 2"),
    ],
)
def test_boxes_of_one_list_are_one_answer(text, expected):
    """More of them in answer_cases.txt."""
    assert boxed_answer(text).text == expected


def test_a_percent_sign_behind_the_box_may_count():
    for text in (r"$\boxed{50}$\%", r"\boxed{50} percent"):
        assert boxed_answer(text).readings == ("50", r"50\%")
    assert boxed_answer(r"\boxed{50} and 10%").readings == ("50",)


def test_the_last_number():
    texts = ("3 apples and 1,234.5 pears.", "it is -3.", "5-3", "x = 3/4,", "none")
    assert [last_number(one) for one in texts] == ["1,234.5", "-3", "3", "3/4", None]


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ("142\n", ["142"]),
        (r"\boxed{142}", ["142"]),
        (r"\boxed{2} and \boxed{-2}", ["2, -2"]),
        (r'["\\boxed{2}, \\boxed{-2}", "2, -2"]', ["2, -2", "2, -2"]),
        (r"\boxed{10}\%", [r"10\%"]),
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


HOSTILE = [
    r"\boxed{",
    r"\boxed{1}",
    r"\boxed{1}, ",
    "\\",
    "{",
    "}",
    r"\text{",
    "1,",
    "1/",
    " ",
    "-",
    r"\fbox",
    "[",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_repetitive_text_is_searched_in_linear_time(text):
    start = time.perf_counter()
    hostile = text * (1_000_000 // len(text))
    boxed_answer(hostile), last_number(hostile), references(hostile)
    assert time.perf_counter() - start < 20


@given(st.text(alphabet="\\boxedfra{}1,2./-^ $", max_size=60))
def test_a_box_is_found_only_where_one_is(text):
    assert boxed_answer(text) is None or "boxed" in text
    assert boxed_answer(rf"{text.replace('{', '').replace('}', '')} \boxed{{7}}") is not None


@pytest.mark.parametrize("before", ["x > 3 >\n", "k12X<\n", "-\n", "It is not\n", "2 +\n\n", "x =\n"])
def test_what_ends_the_line_before_does_not_touch_a_box(before):
    assert boxed_answer(before + r"\boxed{5}").text == "5"
