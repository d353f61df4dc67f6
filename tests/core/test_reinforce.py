"""REINFORCE++ and KL in rewards by hand; against verl's they are held in `verl_adapter/test_reward_kl.py`."""

from __future__ import annotations

import numpy as np
import pytest

from marsrl_verl.core.credit.advantages import (
    discounted_returns,
    group_relative,
    reinforce_plus_plus,
    token_rewards,
    whitened,
)
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import KL_PENALTIES, RowRef, Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory

MASKS = [[1, 1, 1], [1, 0, 1, 0], [0, 0], [1]]
"""The second row ends with a tool's token, the third has no other."""
REWARDS = [1.0, -1.0, 5.0, 0.5]
PENALTIES = [[0.1, 0.2, 0.3], [0.5, 0, 0.1, 0], [0, 0], [-0.25]]


def rows(
    masks=MASKS, rewards=REWARDS, penalties=PENALTIES, order=None, policies=("policy",) * 4, group_size=None
) -> Rows:
    size = group_size or len(masks)
    groups = []
    for start in range(0, len(masks), size):
        members = [
            Trajectory(
                f"g{start}#{k}",
                [Sequence("solver", [1], [1] * len(mask), [0.0] * len(mask), mask, policy=policy)],
                FinishReason.STOP,
                reward=RewardResult(reward),
            )
            for k, (mask, reward, policy) in enumerate(
                list(zip(masks, rewards, policies, strict=True))[start : start + size]
            )
        ]
        request = RolloutRequest(f"g{start}", Problem("p", "?", "1"), "solver", "solver", (), len(members))
        groups.append(Group(request, members))
    places = range(len(masks)) if order is None else order
    found = Rows.of(groups, [RowRef(place // size, place % size) for place in places])
    if penalties is not None:
        flat = [value for place in places for value in penalties[place]]
        found.columns[KL_PENALTIES] = np.array(flat, dtype=np.float32)
    return found


def by_row(found: Rows, values) -> list[list[float]]:
    return [values[found.slice(row)].tolist() for row in range(len(found))]


def test_the_reward_is_on_the_last_token_that_the_policy_chose():
    one = rows()
    found = by_row(one, token_rewards(one))
    expected = [[-0.1, -0.2, 0.7], [-0.5, 0, -1.1, 0], [0, 0], [0.75]]
    for row, values in zip(found, expected, strict=True):
        assert row == pytest.approx(values)
    without = rows(penalties=None)
    assert by_row(without, token_rewards(without)) == [[0, 0, 1], [0, 0, -1, 0], [0, 0], [0.5]]


def test_a_sequences_own_reward_goes_before_its_trajectorys():
    one = rows(penalties=None)
    one.sequence(0).reward = -3.0
    assert by_row(one, token_rewards(one))[0] == [0, 0, -3]


def test_returns_skip_tokens_of_tools():
    one = rows()
    found = by_row(one, discounted_returns(one, token_rewards(one), gamma=0.5))
    # 0.7; -0.2 + 0.35; -0.1 + 0.075. Then -1.1; -0.5 - 0.55, over a tool's token at no discount.
    expected = [[-0.025, 0.15, 0.7], [-1.05, 0, -1.1, 0], [0, 0], [0.75]]
    for row, values in zip(found, expected, strict=True):
        assert row == pytest.approx(values)


def test_whitening_is_over_all_tokens_of_the_step():
    one = rows([[1, 1], [1, 0, 1]], [0, 0], None, policies=("policy",) * 2)
    values = np.array([1.0, 3.0, 5.0, 99.0, 7.0])
    # Mean 4, squares 9 + 1 + 1 + 9 = 20, over 3.
    expected = np.array([-3, -1, 1, 0, 3]) / np.sqrt(20 / 3 + 1e-8)
    np.testing.assert_allclose(whitened(one, values), expected)


def test_each_policy_is_whitened_alone():
    one = rows([[1, 1], [1, 1], [1]], [0, 0, 0], None, policies=("a", "b", "c"))
    found = whitened(one, np.array([1.0, 3.0, 50.0, 70.0, 8.0]))
    # A single token has nothing to differ from.
    np.testing.assert_allclose(found, np.array([-1, 1, -1, 1, 0]) / np.sqrt(2), rtol=1e-8)


def test_reinforce_plus_plus_by_hand():
    one = rows([[1, 1], [1, 1]], [1, 0], [[0, 0.5], [0, 0]], policies=("policy",) * 2)
    # Returns 0.5, 0.5, 0, 0: mean 1/4, squares 4/16, over 3.
    expected = np.array([0.25, 0.25, -0.25, -0.25]) / np.sqrt(0.25 / 3 + 1e-8)
    np.testing.assert_allclose(reinforce_plus_plus(one), expected)
    np.testing.assert_allclose(reinforce_plus_plus(one, np.array([0, 0.5, 0, 0])), expected)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_order_of_rows_and_their_groups_make_no_difference(gamma):
    generator = np.random.default_rng(7)
    masks = [generator.integers(0, 2, size=size).tolist() for size in generator.integers(1, 30, size=12)]
    rewards = generator.normal(size=12).tolist()
    penalties = [(generator.normal(size=len(mask)) * mask).tolist() for mask in masks]
    settings = {"policies": ["policy"] * 12}
    one = rows(masks, rewards, penalties, **settings)
    expected = by_row(one, reinforce_plus_plus(one, gamma=gamma))
    order = generator.permutation(12).tolist()
    for size in (12, 3):
        other = rows(masks, rewards, penalties, order, group_size=size, **settings)
        found = by_row(other, reinforce_plus_plus(other, gamma=gamma))
        for place, values in zip(order, found, strict=True):
            np.testing.assert_allclose(values, expected[place], rtol=1e-9, atol=1e-12)


def test_a_step_without_a_token_has_no_advantage():
    empty = rows([[0], []], [1, 0], None, policies=("policy",) * 2)
    assert reinforce_plus_plus(empty).tolist() == [0.0]
    assert reinforce_plus_plus(rows([], [], None, policies=(), group_size=1)).tolist() == []


def test_a_group_is_compared_by_rewards_less_the_kl_of_whole_sequences():
    one = rows([[1, 1], [1, 0, 1], [1]], [1, 1, 0], [[0.25, 0.25], [0, 0, 0], [0.5]], policies=["policy"] * 3)
    # 0.5, 1, -0.5.
    found = group_relative(one, normalize_std=False)
    np.testing.assert_allclose(found, np.array([0.5, 1, -0.5]) - 1 / 3)


def test_a_sequence_without_a_token_of_its_own_has_no_kl():
    masks, rewards, costs = [[1], [0], [1]], [1, 1, 0], [[0.5], [0], [0]]
    settings = {"order": [0, 2], "policies": ["policy"] * 3}
    found = group_relative(rows(masks, rewards, costs, **settings), normalize_std=False)
    np.testing.assert_allclose(found, [0.0, -0.5])  # of 0.5, 1, 0


def test_a_member_whose_kl_nobody_knows_is_refused_by_id():
    one = rows([[1], [1], [1]], [1, 1, 0], [[0.5], [0.1], [0]], order=[0, 2], policies=["policy"] * 3)
    with pytest.raises(ValueError, match="trajectory g0#1 is compared by its reward less a KL penalty"):
        group_relative(one)
