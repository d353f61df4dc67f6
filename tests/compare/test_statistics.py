"""The t interval against hand-computed ones."""

from __future__ import annotations

import pytest

from marsrl_verl.compare.statistics import t_interval


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
