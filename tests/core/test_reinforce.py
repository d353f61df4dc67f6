"""Returns, REINFORCE++ and KL in rewards by hand; verl's are compared in `verl_adapter/test_reward_kl.py`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.credit.advantages import (
    discounted_returns,
    group_relative,
    reinforce_plus_plus,
    token_rewards,
    turn_discounts,
    whitened,
)
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import KL_PENALTIES, RowRef, Rows
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory

MASKS = [[1, 1, 1], [1, 0, 1, 0], [0, 0], [1]]
"""The second row ends with a tool's token, the third has no other."""
REWARDS = [1.0, -1.0, 5.0, 0.5]
PENALTIES = [[0.1, 0.2, 0.3], [0.5, 0, 0.1, 0], [0, 0], [-0.25]]


def rows(
    masks=MASKS, rewards=REWARDS, penalties=None, order=None, policies=None, group_size=None, turns=None
) -> Rows:
    """A row for each mask. `turns`: -1 for a token that nobody sampled, None where a row has no turns."""
    size = group_size or len(masks)
    members = []
    for place, (mask, reward) in enumerate(zip(masks, rewards, strict=True)):
        own = turns and turns[place]
        policy = policies[place] if policies else "policy"
        ids, log_probs = [1] * len(mask), [0.0] * len(mask)
        annotations = {TURN: np.array(own, np.int16)} if own else {}
        sequence = Sequence("solver", [1], ids, log_probs, mask, policy=policy, annotations=annotations)
        name = f"g{place // size * size}#{place % size}"
        members.append(Trajectory(name, [sequence], FinishReason.STOP, reward=RewardResult(reward)))
    groups = []
    for start in range(0, len(masks), size):
        some = members[start : start + size]
        problem = Problem("p", "?", "1")
        groups.append(Group(RolloutRequest(f"g{start}", problem, "solver", "solver", (), len(some)), some))
    places = range(len(masks)) if order is None else order
    found = Rows.of(groups, [RowRef(place // size, place % size) for place in places])
    if penalties is not None:
        flat = [value for place in places for value in penalties[place]]
        found.columns[KL_PENALTIES] = np.array(flat, dtype=np.float32)
    return found


def rows_of_turns(*turns: list[int] | None) -> Rows:
    masks = [[1] * 4 if own is None else [int(turn >= 0) for turn in own] for own in turns]
    return rows(masks, [1.0] * len(masks), turns=turns)


def by_row(found: Rows, values) -> list[list[float]]:
    return [values[found.slice(row)].tolist() for row in range(len(found))]


def test_the_reward_is_on_the_last_token_that_the_policy_chose():
    one = rows(penalties=PENALTIES)
    found = by_row(one, token_rewards(one))
    expected = [[-0.1, -0.2, 0.7], [-0.5, 0, -1.1, 0], [0, 0], [0.75]]
    assert found == [pytest.approx(values) for values in expected]
    without = rows()
    assert by_row(without, token_rewards(without)) == [[0, 0, 1], [0, 0, -1, 0], [0, 0], [0.5]]


def test_a_sequences_own_reward_goes_before_its_trajectorys():
    one = rows()
    one.sequence(0).reward = -3.0
    assert by_row(one, token_rewards(one))[0] == [0, 0, -3]


def test_returns_skip_tokens_of_tools():
    one = rows(penalties=PENALTIES)
    found = by_row(one, discounted_returns(one, token_rewards(one), gamma=0.5))
    # 0.7; -0.2 + 0.35; -0.1 + 0.075. Then -1.1; -0.5 - 0.55, over a tool's token at no discount.
    expected = [[-0.025, 0.15, 0.7], [-1.05, 0, -1.1, 0], [0, 0], [0.75]]
    assert found == [pytest.approx(values) for values in expected]


def test_whitening_is_over_all_tokens_of_the_step():
    one = rows([[1, 1], [1, 0, 1]], [0, 0])
    values = np.array([1.0, 3.0, 5.0, 99.0, 7.0])
    # Mean 4, squares 9 + 1 + 1 + 9 = 20, over 3.
    expected = np.array([-3, -1, 1, 0, 3]) / np.sqrt(20 / 3 + 1e-8)
    np.testing.assert_allclose(whitened(one, values), expected)


def test_each_policy_is_whitened_alone():
    one = rows([[1, 1], [1, 1], [1]], [0, 0, 0], policies=("a", "b", "c"))
    found = whitened(one, np.array([1.0, 3.0, 50.0, 70.0, 8.0]))
    # A single token has nothing to differ from.
    np.testing.assert_allclose(found, np.array([-1, 1, -1, 1, 0]) / np.sqrt(2), rtol=1e-8)


def test_reinforce_plus_plus_by_hand():
    one = rows([[1, 1], [1, 1]], [1, 0], [[0, 0.5], [0, 0]])
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
    one = rows(masks, rewards, penalties)
    expected = by_row(one, reinforce_plus_plus(one, gamma=gamma))
    order = generator.permutation(12).tolist()
    for size in (12, 3):
        other = rows(masks, rewards, penalties, order, group_size=size)
        found = by_row(other, reinforce_plus_plus(other, gamma=gamma))
        for place, values in zip(order, found, strict=True):
            np.testing.assert_allclose(values, expected[place], rtol=1e-9, atol=1e-12)


def test_a_step_without_a_token_has_no_advantage():
    empty = rows([[0], []], [1, 0])
    assert reinforce_plus_plus(empty).tolist() == [0.0]
    assert reinforce_plus_plus(rows([], [], group_size=1)).tolist() == []


def test_a_group_is_compared_by_rewards_less_the_kl_of_whole_sequences():
    one = rows([[1, 1], [1, 0, 1], [1]], [1, 1, 0], [[0.25, 0.25], [0, 0, 0], [0.5]])
    # 0.5, 1, -0.5.
    found = group_relative(one, normalize_std=False)
    np.testing.assert_allclose(found, np.array([0.5, 1, -0.5]) - 1 / 3)


def test_a_sequence_without_a_token_of_its_own_has_no_kl():
    masks, rewards, costs = [[1], [0], [1]], [1, 1, 0], [[0.5], [0], [0]]
    found = group_relative(rows(masks, rewards, costs, order=[0, 2]), normalize_std=False)
    np.testing.assert_allclose(found, [0.0, -0.5])  # of 0.5, 1, 0


def test_a_member_whose_kl_nobody_knows_is_refused_by_id():
    one = rows([[1], [1], [1]], [1, 1, 0], [[0.5], [0.1], [0]], order=[0, 2])
    with pytest.raises(ValueError, match="trajectory g0#1 is compared by its reward less a KL penalty"):
        group_relative(one)


# --- turns ---------------------------------------------------------------------------------------


def test_returns_of_turns():
    """Turns of 2, 1 and 2 tokens with a message of the other agent after each: the reward 1 is worth 0.9 a
    token before, and 0.5 a turn before."""
    found = rows_of_turns([0, 0, -1, 1, -1, -1, 2, 2], None)
    discounts = turn_discounts(found, token=0.9, turn=0.5)
    np.testing.assert_allclose(discounts[found.slice(0)][[0, 1, 3, 6]], [0.9, 0.5, 0.5, 0.9])
    assert (discounts[found.slice(1)] == 0.9).all(), "a row without turns is one"
    returns = discounted_returns(found, token_rewards(found), gamma=discounts)
    last = 1.0
    third, fourth = 0.9 * last, last
    second = 0.5 * third
    first = 0.5 * second
    np.testing.assert_allclose(returns[found.slice(0)], [0.9 * first, first, 0, second, 0, 0, third, fourth])
    np.testing.assert_allclose(returns[found.slice(1)], [0.9**3, 0.9**2, 0.9, 1.0])


def test_with_token_discount_1_all_tokens_of_a_turn_are_worth_its_return():
    """G_t = r_t + γ G_{t+1}: 0.25, 0.5 and 1 for the last of three turns with γ = 0.5."""
    found = rows_of_turns([0, 0, -1, 1, 1, 2])
    returns = discounted_returns(found, token_rewards(found), gamma=turn_discounts(found, turn=0.5))
    np.testing.assert_allclose(returns, [0.25, 0.25, 0.0, 0.5, 0.5, 1.0])


@given(
    st.lists(st.lists(st.integers(-1, 2), min_size=1, max_size=8), min_size=1, max_size=4), st.floats(0.1, 1)
)
def test_equal_discounts_are_those_of_tokens(turns, gamma):
    found = rows_of_turns(*[sorted(own) if own[0] < 0 else own for own in turns])
    rewards = token_rewards(found)
    discounts = turn_discounts(found, token=gamma, turn=gamma)
    expected = discounted_returns(found, rewards, gamma=gamma)
    np.testing.assert_allclose(discounted_returns(found, rewards, gamma=discounts), expected)
