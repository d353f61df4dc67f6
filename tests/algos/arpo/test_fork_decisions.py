"""When a trajectory is forked: golden values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.arpo.branching import (
    BranchingConfig,
    BranchLaw,
    EntropyOf,
    token_entropies,
    turn_entropy,
)
from marsrl_verl.core.sequence import token_ids
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.rollout.generation import Completion, TopLogProbs


@pytest.mark.parametrize(
    ("change", "chance"),
    [(0.0, 0.5), (0.25, 0.55), (-0.25, 0.45), (1.0, 0.7), (-1.0, 0.3), (5.0, 1.0), (-5.0, 0.0), (None, 0.5)],
)
def test_probability_of_the_paper(change, chance):
    """P = 0.5 + 0.2 ΔH, between 0 and 1."""
    assert BranchingConfig().probability(change) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("rule", "change", "draws", "forks"),
    [
        pytest.param({"law": "threshold"}, -0.01, [0.99], [False], id="falls"),
        pytest.param({"law": "threshold"}, 0.0, [0.99], [False], id="stays"),
        pytest.param({"law": "threshold"}, 0.01, [0.99], [True], id="rises"),
        pytest.param({"law": "threshold"}, None, [0.99], [False], id="unknown"),
        pytest.param({"beam": 4}, 0.3, [0.0, 0.5, 0.9], [True] * 3, id="Z - 1 forks"),
        pytest.param({"threshold": 0.6}, 0.4, [0.0], [False], id="P = 0.58"),
        pytest.param({"threshold": 0.6}, 0.6, [0.0], [True], id="P = 0.62"),
        pytest.param({"law": "bernoulli", "beam": 3}, 0.25, [0.549, 0.551], [True, False], id="P = 0.55"),
        pytest.param({"law": "bernoulli", "beam": 3}, -0.25, [0.449, 0.451], [True, False], id="P = 0.45"),
        pytest.param({"law": "random", "base_probability": 0.3}, None, [0.29], [True], id="random, unknown"),
        pytest.param({"law": "random", "base_probability": 0.3}, 9.0, [0.29], [True], id="random, rises"),
        pytest.param({"law": "random", "base_probability": 0.3}, -9.0, [0.31], [False], id="random, falls"),
        pytest.param({"law": "off"}, 1.0, [], [], id="off"),
    ],
)
def test_forks_by_hand(rule, change, draws, forks):
    """The paper forks where entropy rises, the released code throws a coin for each fork."""
    assert BranchingConfig(**rule).decide_forks(change, draws) == forks


def test_draws_are_one_for_each_fork():
    with pytest.raises(ValueError, match="2 draws, expected 1"):
        BranchingConfig().decide_forks(0.1, [0.1, 0.2])


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 2), st.floats(0, 1), st.floats(0, 0.999))
def test_more_entropy_never_forks_less(first, second, weight, base, draw):
    low, high = sorted((first, second))
    for law in (BranchLaw.THRESHOLD, BranchLaw.BERNOULLI):
        rule = BranchingConfig(law=law, base_probability=base, entropy_weight=weight)
        assert rule.decide_forks(low, [draw]) <= rule.decide_forks(high, [draw])


def completion(top_ids, top, ids, own) -> Completion:
    top_log_probs = TopLogProbs(np.array(top_ids, np.int32), np.log(np.array(top)).astype(np.float32))
    return Completion(
        token_ids(ids), np.log(np.array(own)).astype(np.float32), FinishReason.LENGTH, top=top_log_probs
    )


def test_entropy_of_the_whole_distribution():
    """p = (1/2, 1/4), and 1/4 on the other two of four tokens: between one of them with 1/4 and both with
    1/8."""
    found = token_entropies(completion([[0, 1]], [[0.5, 0.25]], [0], [0.5]), EntropyOf.RESULT, 4)
    low = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    high = 0.5 * math.log(2) + 0.25 * math.log(4) + 2 * 0.125 * math.log(8)
    assert found.tolist() == pytest.approx([(low + high) / 2])


def test_entropy_of_the_released_code():
    """The likeliest tokens' terms, and the sampled one's where it is none of them."""
    inside = completion([[0, 1]], [[0.5, 0.25]], [1], [0.25])
    assert token_entropies(inside, EntropyOf.CALL, 4).tolist() == pytest.approx([0.5 * math.log(2) * 2])
    outside = completion([[0, 1]], [[0.5, 0.25]], [3], [0.125])
    expected = 0.5 * math.log(2) + 0.25 * math.log(4) + 0.125 * math.log(8)
    assert token_entropies(outside, EntropyOf.CALL, 4).tolist() == pytest.approx([expected])


def test_a_token_that_cannot_be_has_no_term():
    with np.errstate(divide="ignore"):
        one = completion([[0, 1]], [[1.0, 0.0]], [0], [1.0])
    assert token_entropies(one, EntropyOf.CALL, 4).tolist() == [0.0]


def test_a_turns_entropy_is_a_mean_and_in_the_released_code_a_sum():
    assert turn_entropy([1.0, 3.0], EntropyOf.RESULT, 8) == pytest.approx(2 / math.log(8))
    assert turn_entropy([1.0, 3.0], EntropyOf.CALL, 8) == pytest.approx(4 / math.log(8))
    assert turn_entropy([], EntropyOf.RESULT, 8) is None


def test_nothing_is_told_where_nothing_was_asked():
    one = Completion(token_ids([1]), np.zeros(1, np.float32), FinishReason.STOP)
    assert token_entropies(one, EntropyOf.RESULT, 4).tolist() == []
