from __future__ import annotations

import pytest

from marsrl_verl.evaluation.credit_metrics import credit_metrics


def test_tokens_weigh_equally():
    found = credit_metrics({"a": ((3, 0.5), (4, 0.0)), "b": ((4, -1.0),), "c": ((2, 0.0),)})
    assert found == {
        "batch/advantage_mean": pytest.approx((3 * 0.5 - 4) / 10),
        "batch/advantage_min": -1.0,
        "batch/advantage_max": 0.5,
        "batch/samples_with_advantage_share": pytest.approx(2 / 3),
        "batch/tokens_with_advantage_share": pytest.approx(7 / 10),
    }


def test_parts_without_a_token_do_not_count():
    found = credit_metrics({"a": ((0, 9.0), (2, 1.0))})
    assert found["batch/advantage_max"] == found["batch/advantage_mean"] == 1.0
    assert credit_metrics({"a": ((0, 9.0), (2, 0.0))})["batch/samples_with_advantage_share"] == 0.0


def test_nothing_trained_gives_nothing():
    assert credit_metrics({}) == {} == credit_metrics({"a": ()})
