"""Intervals and tests against hand-computed ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.compare.statistics import MAX_FLIPPED, least_p, seed_differences, sign_flip_p, t_interval


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


def test_paired_differences_see_what_the_intervals_of_both_hide():
    # Seeds differ by 0.2, methods by 0.02, 0.03, 0.04: s = 0.01, half width 4.30265 x 0.01 / sqrt(3).
    first, second = {1: 0.5, 2: 0.7, 3: 0.9}, {3: 0.94, 1: 0.52, 2: 0.73, 4: 0.1}
    found = t_interval(seed_differences(first, second))
    assert (found.mean, found.n) == (pytest.approx(0.03), 3)
    assert (found.low, found.high) == (pytest.approx(0.00516, abs=1e-5), pytest.approx(0.05484, abs=1e-5))
    assert t_interval(first.values()).high > t_interval(second.values()).low
    assert found.sign == 1


def test_seeds_without_a_value_on_one_side_do_not_count():
    assert seed_differences({1: 0.5, 2: None}, {1: 0.75, 2: 0.9}) == [0.25]
    assert seed_differences({1: 0.5}, {2: 0.9}) == []


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # All of one sign: only this assignment and its opposite are as far from 0.
        ([0.02, 0.03, 0.04], 2 / 8),
        ([-1.0] * 6, 2 / 64),
        # Sum 5: of the sums ±7, ±5, ±5, ±3, ±1, ±1, ±1, ±3 six are as far from 0.
        ([1.0, 2.0, 3.0, -1.0], 6 / 16),
        ([0.1, -0.1], 1.0),
        ([0.0, 0.0, 0.0], 1.0),
        ([0.0, 0.3], 1.0),
        ([0.3], 1.0),
        # Sums ±1.1, twice ±0.5, ±0.1, where 0.1 + 0.2 and 0.3 differ in their last digits.
        ([0.1 + 0.2, -0.3, 0.5], 6 / 8),
    ],
)
def test_sign_flips_by_hand(differences, p):
    assert sign_flip_p(differences) == pytest.approx(p)


def test_impossible_sign_flips_are_refused():
    with pytest.raises(ValueError, match="expected 1 to 16 differences, found 0"):
        sign_flip_p([])
    with pytest.raises(ValueError, match="found 17"):
        sign_flip_p([1.0] * (MAX_FLIPPED + 1))


some = st.lists(st.integers(-9, 9), min_size=1, max_size=7)


@given(some, st.floats(0.01, 100), st.sampled_from((1, -1)), st.randoms())
def test_sign_flip_p_is_blind_to_order_size_and_side(differences, scale, side, shuffler):
    p = sign_flip_p(differences)
    moved = [side * scale * one for one in differences]
    shuffler.shuffle(moved)
    assert sign_flip_p(moved) == pytest.approx(p)


@given(some)
def test_if_signs_mean_nothing_p_is_small_as_often_as_it_says(differences):
    found = [sign_flip_p(signed) for signed in itertools.product(*[(one, -one) for one in differences])]
    assert min(found) >= least_p(len(differences))
    assert all(sum(one <= p for one in found) / len(found) == p for p in found)
