"""Entropies of which a part is known: golden values by hand, and what holds for any distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marsrl_verl.rollout.entropy import entropy_bounds, entropy_from_top
from marsrl_verl.rollout.generation import TopLogProbs


def top_of(log_probs: np.ndarray, m: int) -> TopLogProbs:
    """The m likeliest of (T, V) as an engine tells them."""
    ids = np.argsort(-log_probs, axis=1, kind="stable")[:, :m].astype(np.int32)
    return TopLogProbs(ids, np.take_along_axis(log_probs, ids, axis=1).astype(np.float32))


def entropy(log_probs: np.ndarray) -> np.ndarray:
    """(T,) of (T, V) log-probabilities."""
    return -(np.exp(log_probs) * np.where(np.isfinite(log_probs), log_probs, 0.0)).sum(axis=1)


def log_of(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array([probabilities]))


def test_the_rest_is_on_as_few_or_as_many_tokens_as_can_have_it():
    # 0.5 and 0.2 are known; 0.3 is left for four tokens of at most 0.2.
    low, high = entropy_bounds(top_of(log_of(0.5, 0.2), 2), 6)
    head = -0.5 * math.log(0.5) - 0.2 * math.log(0.2)
    assert low == pytest.approx([head - 0.2 * math.log(0.2) - 0.1 * math.log(0.1)], abs=1e-6)
    assert high == pytest.approx([head - 0.3 * math.log(0.3 / 4)], abs=1e-6)
    assert entropy_from_top(top_of(log_of(0.5, 0.2), 2), 6) == pytest.approx((low + high) / 2)


@pytest.mark.parametrize(
    ("probabilities", "m", "size"),
    [
        pytest.param((0.7, 0.2, 0.1), 3, 3, id="all tokens"),
        pytest.param((0.7, 0.2, 0.1), 3, 1000, id="all that are likely"),
        pytest.param((0.75, 0.25, 0.0, 0.0), 3, 500, id="what top-k has cut off"),
        pytest.param((1.0, 0.0, 0.0), 2, 3, id="a forced token"),
    ],
)
def test_a_distribution_that_is_known_has_its_entropy(probabilities, m, size):
    expected = -sum(one * math.log(one) for one in probabilities if one)
    bounds = entropy_bounds(top_of(log_of(*probabilities), m), size)
    assert bounds == (pytest.approx([expected], abs=1e-5),) * 2


def test_no_position_is_no_entropy():
    assert entropy_from_top(
        TopLogProbs(np.zeros((0, 3), np.int32), np.zeros((0, 3), np.float32)), 9
    ).shape == (0,)


@pytest.mark.parametrize("m", [0, 4])
def test_more_tokens_than_there_are_or_none_are_refused(m):
    top = TopLogProbs(np.zeros((2, m), np.int32), np.zeros((2, m), np.float32))
    with pytest.raises(ValueError, match=f"{m} likeliest tokens are known of a vocabulary of 3"):
        entropy_bounds(top, 3)


@given(st.integers(2, 3000), st.floats(0.1, 20), st.integers(0, 100))
@settings(max_examples=40)
def test_the_entropy_lies_between_bounds_that_narrow(size, spread, seed):
    logits = np.random.default_rng(seed).normal(scale=spread, size=(3, size))
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    exact, width = entropy(log_probs), []
    for m in sorted({1, min(5, size), min(20, size), size}):
        top = top_of(log_probs, m)
        low, high = entropy_bounds(top, size)
        assert (low <= exact + 1e-4).all() and (exact <= high + 1e-4).all() and (low >= -1e-9).all()
        assert np.abs(entropy_from_top(top, size) - exact).max() <= (high - low).max() / 2 + 1e-4
        width.append(float((high - low).mean()))
    assert width == pytest.approx(sorted(width, reverse=True), abs=1e-5), "more tokens tell more"
    assert width[-1] == pytest.approx(0.0, abs=1e-4)
