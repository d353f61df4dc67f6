"""Staleness and true ratios, with values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from marsrl_verl.algos.off_policy import staleness_metrics


def test_ages_and_ratios():
    log_probs = torch.log(torch.tensor([[0.5, 0.4, 0.9]]))
    rollout = torch.log(torch.tensor([[0.5, 0.2, 0.1]]))
    found = staleness_metrics(
        log_probs, rollout, torch.tensor([[4, 2, 0]]), torch.tensor([[1, 1, 0]]), version=4
    )
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
    ratios = torch.log(torch.tensor([[1.0, 2.0, 0.25, 4.0, 4.0, 9.0]]))
    versions, mask = torch.tensor([[9, 8, 8, 4, 3, 8]]), torch.tensor([[1, 1, 1, 1, 1, 0]])
    found = staleness_metrics(ratios - 3, torch.full((1, 6), -3.0), versions, mask, version=9)
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


def test_without_stale_tokens_there_are_no_stale_figures():
    zeros = torch.zeros(1, 2)
    found = staleness_metrics(zeros, zeros, torch.full((1, 2), 3), torch.ones(1, 2), version=3)
    assert found["off_policy/older_than/0"] == 0.0
    assert not any(name.startswith("off_policy/stale/") for name in found)


def test_no_token_no_figure():
    zeros = torch.zeros(1, 2)
    assert staleness_metrics(zeros, zeros, zeros, zeros, version=1) == {}
