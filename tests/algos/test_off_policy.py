"""Staleness and true ratios, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from marsrl_verl.algos.off_policy import staleness_metrics
from marsrl_verl.core.rows import OLD_LOG_PROBS, RESPONSE_MASK, TOKEN_VERSIONS, RowRef, Rows


def rows(log_probs, versions, mask) -> Rows:
    """One row with these tokens."""
    columns = {
        OLD_LOG_PROBS: np.array(log_probs, dtype=np.float32),
        TOKEN_VERSIONS: np.array(versions, dtype=np.int32),
        RESPONSE_MASK: np.array(mask, dtype=np.uint8),
    }
    return Rows([], [RowRef(0, 0)], np.array([0, len(log_probs)]), columns)


def versions(number: int, tokens: int) -> np.ndarray:
    return np.full(tokens, number, dtype=np.int32)


def test_ages_and_ratios():
    one = rows(np.log([0.5, 0.4, 0.9]), [4, 2, 0], [1, 1, 0])
    found = staleness_metrics(one, np.log([0.5, 0.2, 0.1]), versions(4, 3))
    assert found["off_policy/staleness_mean"] == 1.0
    assert found["off_policy/staleness_max"] == 2.0
    assert [found[f"off_policy/older_than/{age}"] for age in range(4)] == [0.5, 0.5, 0.0, 0.0]
    assert found["off_policy/ratio_mean"] == pytest.approx(1.5)
    assert found["off_policy/ratio_max"] == pytest.approx(2.0)
    assert found["off_policy/stale/ratio_min"] == pytest.approx(2.0)
    # k3 at ratio 2: 2 - 1 - ln 2
    assert found["off_policy/stale/kl"] == pytest.approx(1 - math.log(2), abs=1e-6)
    assert found["off_policy/kl"] == pytest.approx((1 - math.log(2)) / 2, abs=1e-6)


def test_log_ratios_by_age():
    # ages 0, 1, 1, 5, 6 | 1 where the model wrote nothing; ratios 1, 2, 1/4, 4, 4 | 9
    one = rows(np.log([1.0, 2.0, 0.25, 4.0, 4.0, 9.0]) - 3, [9, 8, 8, 4, 3, 8], [1, 1, 1, 1, 1, 0])
    found = staleness_metrics(one, np.full(6, -3.0), versions(9, 6))
    assert {name: value for name, value in found.items() if "/age/" in name} == pytest.approx(
        {
            "off_policy/age/0/log_ratio_mean": 0.0,
            "off_policy/age/0/log_ratio_abs_mean": 0.0,
            "off_policy/age/1/log_ratio_mean": -math.log(2) / 2,
            "off_policy/age/1/log_ratio_abs_mean": 1.5 * math.log(2),
            "off_policy/age/over_3/log_ratio_mean": math.log(4),
            "off_policy/age/over_3/log_ratio_abs_mean": math.log(4),
        },
        abs=1e-6,
    )
    assert [found[f"off_policy/older_than/{age}"] for age in range(4)] == pytest.approx([0.8, 0.4, 0.4, 0.4])


def test_ages_are_those_of_the_tokens_own_policy():
    found = staleness_metrics(rows([-1.0, -1.0], [3, 6], [1, 1]), np.full(2, -1.0), np.array([3, 8]))
    assert (found["off_policy/staleness_mean"], found["off_policy/staleness_max"]) == (1.0, 2.0)


def test_without_stale_tokens_there_are_no_stale_figures():
    found = staleness_metrics(rows([0.0, 0.0], [3, 3], [1, 1]), np.zeros(2), versions(3, 2))
    assert found["off_policy/older_than/0"] == 0.0
    assert not any(name.startswith("off_policy/stale/") for name in found)


def test_no_token_no_figure():
    assert staleness_metrics(rows([0.0], [0], [0]), np.zeros(1), versions(1, 1)) == {}
