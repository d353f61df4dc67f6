"""Intervals and tests against hand-computed ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.compare.statistics import paired_difference, permutation_p, t_interval


def test_three_values_by_hand():
    # mean 0.7, deviations -0.1, 0, 0.1: s = 0.1, half width 4.30265 x 0.1 / sqrt(3) = 0.24841
    found = t_interval([0.6, 0.7, 0.8])
    assert (found.mean, found.n) == (pytest.approx(0.7), 3)
    assert (found.low, found.high) == (pytest.approx(0.45159, abs=1e-5), pytest.approx(0.94841, abs=1e-5))


def test_what_was_not_observed_does_not_count():
    # mean 0.5, s = 0.1 x sqrt(2), half width 12.7062 x 0.1 = 1.27062
    found = t_interval([0.4, None, 0.6])
    assert (found.n, found.mean) == (2, pytest.approx(0.5))
    assert found.high == pytest.approx(1.77062, abs=1e-4)


def test_one_value_has_no_interval_and_none_no_mean():
    assert t_interval([0.4]).to_json() == {"mean": 0.4, "low": None, "high": None, "n": 1}
    assert t_interval([None]).to_json() == {"mean": None, "low": None, "high": None, "n": 0}


def test_a_paired_difference_sees_what_the_intervals_of_both_hide():
    # Seeds differ by 0.2, methods by 0.02, 0.03, 0.04: s = 0.01, half width 4.30265 x 0.01 / sqrt(3).
    first, second = {1: 0.5, 2: 0.7, 3: 0.9}, {3: 0.94, 1: 0.52, 2: 0.73, 4: 0.1}
    found = paired_difference(first, second)
    assert (found.mean, found.n) == (pytest.approx(0.03), 3)
    assert (found.low, found.high) == (pytest.approx(0.00516, abs=1e-5), pytest.approx(0.05484, abs=1e-5))
    assert t_interval(first.values()).high > t_interval(second.values()).low
    assert found.sign == 1


def test_seeds_without_a_value_on_one_side_do_not_count():
    assert paired_difference({1: 0.5, 2: None}, {1: 0.7, 2: 0.9}).n == 1
    assert paired_difference({1: 0.5}, {2: 0.9}).mean is None


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 2 / 20),
        # The three highest of nine: one division in 84 is as far apart on either side where the rest is even.
        ([7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2 / 84),
        ([1.0, 2.0], [1.0, 2.0], 1.0),
        ([0.1, 0.2], [0.3], 2 / 3),
    ],
)
def test_permutations_by_hand(first, second, p):
    assert permutation_p(first, second) == pytest.approx(p)


def test_impossible_permutations_are_refused():
    with pytest.raises(ValueError, match="found 0 and 1"):
        permutation_p([], [1.0])
    with pytest.raises(ValueError, match="more than 200,000 ways"):
        permutation_p([0.0] * 12, [1.0] * 12)


values = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=5)


@given(values, values, st.floats(-3, 3), st.randoms())
def test_permutation_p_is_blind_to_order_shift_and_side(first, second, shift, shuffler):
    p = permutation_p(first, second)
    assert 1 / 252 <= p <= 1
    moved = [[one + shift for one in side] for side in (second, first)]
    for side in moved:
        shuffler.shuffle(side)
    assert permutation_p(*moved) == pytest.approx(p)
