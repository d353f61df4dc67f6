"""Numbers that differ for certain are told apart without algebra, and only where math-verify does so too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_verify import verify

from marsrl_verl.rewards.math_grading import _are_apart, _parse, _parse_answer

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
