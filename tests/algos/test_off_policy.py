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
    assert found["off_policy/stale_token_share"] == 0.5
    assert found["off_policy/ratio_mean"] == pytest.approx(1.5)
    assert found["off_policy/ratio_max"] == pytest.approx(2.0)
    assert found["off_policy/stale/ratio_min"] == pytest.approx(2.0)
    # k3 at ratio 2: 2 - 1 - ln 2
    assert found["off_policy/stale/kl"] == pytest.approx(1 - math.log(2), abs=1e-6)
    assert found["off_policy/kl"] == pytest.approx((1 - math.log(2)) / 2, abs=1e-6)


def test_without_stale_tokens_there_are_no_stale_figures():
    zeros = torch.zeros(1, 2)
    found = staleness_metrics(zeros, zeros, torch.full((1, 2), 3), torch.ones(1, 2), version=3)
    assert found["off_policy/stale_token_share"] == 0.0
    assert not any(name.startswith("off_policy/stale/") for name in found)


def test_no_token_no_figure():
    zeros = torch.zeros(1, 2)
    assert staleness_metrics(zeros, zeros, zeros, zeros, version=1) == {}
