"""The policy loss over turns: values and gradients by hand, and what they must not depend on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.sequence import LABEL, TURN
from marsrl_verl.losses.inputs import LossInputs, giving
from marsrl_verl.losses.turn_ratio import turn_ratio

TRAJECTORY, TURNS = "seq-mean-turn-mean-token-mean", "turn-mean-token-mean"
ACTOR = SimpleNamespace(clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, clip_ratio_c=3.0)


def loss(
    ratios,
    turns,
    advantages,
    *,
    kind="arithmetic",
    mean=TRAJECTORY,
    bound=3.0,
    mask=None,
    actor=ACTOR,
    **more,
):
    """Loss, gradient by the current log-probabilities, metrics and shares of one micro-batch.

    Args:
        ratios, turns, advantages: rows of one length.
    """
    log_prob = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    mask = torch.ones(log_prob.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    turns = torch.tensor(turns)
    counts = [len(turns[row][mask[row]].unique()) for row in range(len(turns))]
    labels = more.pop("labels", None)
    columns = {TURN: turns} | ({} if labels is None else {LABEL: torch.tensor(labels)})
    settings = {
        "ratio": kind,
        "log_ratio_clip": bound,
        "labels": [] if labels is None else ["meta", "reason"],
    }
    inputs = LossInputs(
        columns, settings, tokens=int(mask.sum()), sequences=len(turns), turns=sum(counts), ranks=1, mean=mean
    )
    with giving(inputs) as call:
        value, metrics = turn_ratio(
            old_log_prob=torch.zeros_like(log_prob), log_prob=log_prob,
            advantages=torch.tensor(advantages, dtype=torch.float64), response_mask=mask,
            loss_agg_mode="token-mean", config=actor, **more,
        )  # fmt: skip
    value.backward()
    return value.item(), log_prob.grad, metrics, call.shares


ONE = ([[1.1, 0.9, 1.5, 1.6, 1.1]], [[0, 0, 1, 1, 1]])
"""A response of two turns: their arithmetic ratios are 1 and 1.4, the geometric ones √0.99 and ∛2.64."""
NEAR = {"rel": 1e-6}  # weights of tokens have single precision


@pytest.mark.parametrize(
    ("kind", "mean", "expected"),
    [
        ("arithmetic", TRAJECTORY, -(1.0 + 1.2) / 2),
        ("geometric", TRAJECTORY, -(math.sqrt(0.99) + 1.2) / 2),
        ("token", TRAJECTORY, -((1.1 + 0.9) / 2 + (1.2 + 1.2 + 1.1) / 3) / 2),
        ("token", "token-mean", -(1.1 + 0.9 + 1.2 + 1.2 + 1.1) / 5),
    ],
)
def test_a_gain_is_clipped_turn_by_turn(kind, mean, expected):
    value, _, metrics, shares = loss(*ONE, [[1.0] * 5], kind=kind, mean=mean)
    assert value == pytest.approx(expected, **NEAR)
    clipped = 2 if kind == "token" else 3
    assert metrics["actor/pg_clipfrac"] == pytest.approx(clipped / 5)
    of = (2.0, 5.0) if kind == "token" else (1.0, 2.0)  # of tokens, of turns
    assert shares["clip_frac"] == pytest.approx(of)


def test_gradients_are_those_of_each_tokens_part():
    """A/T/n = 1/4 for the first turn's tokens, times ρ or r; nothing for the turn that is clipped."""
    _, arithmetic, *_ = loss(*ONE, [[1.0] * 5])
    np.testing.assert_allclose(arithmetic[0], [-1.1 / 4, -0.9 / 4, 0, 0, 0], atol=1e-7)
    _, geometric, *_ = loss(*ONE, [[1.0] * 5], kind="geometric")
    np.testing.assert_allclose(geometric[0], [-math.sqrt(0.99) / 4] * 2 + [0] * 3, atol=1e-7)
    _, token, *_ = loss(*ONE, [[1.0] * 5], kind="token")
    np.testing.assert_allclose(token[0], [-1.1 / 4, -0.9 / 4, 0, 0, -1.1 / 6], atol=1e-7)


def test_a_loss_is_clipped_below_and_by_the_dual_clip():
    """Of three turns with A = -1: ratio 0.5 counts as 0.8, 1.4 as it is, 4 as c = 3."""
    ratios, turns = [[0.4, 0.6, 1.4, 4.0]], [[0, 0, 1, 2]]
    value, gradient, metrics, shares = loss(ratios, turns, [[-1.0] * 4], bound=None)
    assert value == pytest.approx((0.8 + 1.4 + 3.0) / 3)
    np.testing.assert_allclose(gradient[0], [0, 0, 1.4 / 3, 0], atol=1e-7)
    assert shares["clip_frac"] == pytest.approx((1.0, 3.0))
    assert shares["dual_clip_frac"] == pytest.approx((1.0, 3.0))
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(1 / 4)
    assert metrics["actor/ppo_kl"] == pytest.approx(-np.log([0.4, 0.6, 1.4, 4.0]).mean())


@pytest.mark.parametrize(("kind", "held"), [("arithmetic", 1), ("token", 1), ("geometric", 2)])
def test_log_ratios_have_an_upper_bound(kind, held):
    """Bound ln 2: of tokens 8 and 1 the first one is 2; of their geometric mean √8 > 2 both are."""
    found = loss(
        [[8.0, 1.0]], [[0, 0]], [[-1.0, -1.0]], kind=kind, bound=math.log(2.0), mean=TURNS,
    )  # fmt: skip
    assert found[0] == pytest.approx(2.0 if kind == "geometric" else 1.5)
    assert found[3]["pre_clip_frac"] == (held, 2.0)
    assert (found[1][0] == 0).tolist() == ([True, True] if kind == "geometric" else [True, False])


def test_shares_are_told_apart_by_label():
    ratios, turns = [[1.5, 1.5, 1.0], [1.0, 1.5, 1.5]], [[0, 0, 1], [0, 1, 2]]
    *_, shares = loss(ratios, turns, [[1.0] * 3] * 2, labels=[[0] * 3, [1] * 3])
    assert shares["clip_frac/meta"] == pytest.approx((1.0, 2.0))
    assert shares["clip_frac/reason"] == pytest.approx((2.0, 3.0))
    assert shares["clip_frac"] == pytest.approx((3.0, 5.0))


def test_averages_over_turns_and_over_responses_differ():
    """Turn losses -1, -1.1 | -1.05: their mean, and the mean of the responses' means."""
    ratios, turns, gains = [[1.0, 1.1], [1.05, 1.05]], [[0, 1], [0, 0]], [[1.0] * 2] * 2
    assert loss(ratios, turns, gains, mean=TURNS)[0] == pytest.approx(-(1 + 1.1 + 1.05) / 3)
    assert loss(ratios, turns, gains, mean=TRAJECTORY)[0] == pytest.approx(-((1 + 1.1) / 2 + 1.05) / 2)


@pytest.mark.parametrize("kind", ["arithmetic", "geometric", "token"])
def test_what_lies_outside_of_the_loss_counts_for_nothing(kind):
    """Also where it is no number; a turn's ratio is that of its tokens in the loss."""
    found = loss(
        [[1.1, float("nan"), 0.9]], [[0, 0, 0]], [[1.0, float("nan"), 1.0]], kind=kind, mask=[[1, 0, 1]]
    )
    expected = loss([[1.1, 0.9]], [[0, 0]], [[1.0, 1.0]], kind=kind)
    assert found[0] == pytest.approx(expected[0]) and found[2:] == expected[2:]
    np.testing.assert_allclose(found[1][0, [0, 2]], expected[1][0])
    assert found[1][0, 1] == 0.0


def test_importance_weights_multiply_the_loss():
    weights = torch.tensor([[2.0, 2.0, 1.0, 1.0, 1.0]])
    value, *_ = loss(*ONE, [[1.0] * 5], rollout_is_weights=weights)
    assert value == pytest.approx(-(2.0 * 1.0 + 1.2) / 2)


ROWS = st.lists(
    st.lists(
        st.tuples(st.floats(-1.5, 1.5), st.integers(0, 3), st.sampled_from([-2.0, -0.5, 0.0, 1.0])),
        min_size=4,
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)


@given(ROWS, st.sampled_from(["arithmetic", "geometric", "token"]), st.randoms(use_true_random=False))
def test_neither_the_order_of_rows_nor_the_numbers_of_turns_matter(rows, kind, random):
    def parts(some):
        ratios, turns, gains = zip(*[zip(*row, strict=True) for row in some], strict=True)
        return [[math.exp(x) for x in row] for row in ratios], [list(row) for row in turns], list(gains)

    ratios, turns, gains = parts(rows)
    expected = loss(ratios, turns, gains, kind=kind)
    order = list(range(len(rows)))
    random.shuffle(order)
    others = [[7 * turn - 3 for turn in turns[k]] for k in order]
    found = loss([ratios[k] for k in order], others, [gains[k] for k in order], kind=kind)
    assert found[0] == pytest.approx(expected[0], rel=1e-6, abs=1e-7)
    np.testing.assert_allclose(found[1], expected[1][order], rtol=1e-6, atol=1e-7)


@given(ROWS)
def test_one_token_to_a_turn_is_the_ratio_of_tokens(rows):
    ratios = [[math.exp(x) for x, _, _ in row] for row in rows]
    gains, turns = [[gain for *_, gain in row] for row in rows], [[0, 1, 2, 3]] * len(rows)
    expected = loss(ratios, turns, gains, kind="token")
    for kind in ("arithmetic", "geometric"):
        found = loss(ratios, turns, gains, kind=kind)
        assert found[0] == pytest.approx(expected[0], rel=1e-6, abs=1e-7)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-6, atol=1e-7)
