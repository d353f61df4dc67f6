"""Returns of turns: a discount between two tokens of one turn, another between two turns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.credit.advantages import discounted_returns, token_rewards, turn_discounts
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.sequence import TURN, Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory


def rows(*turns: list[int] | None, rewards: list[float] | None = None) -> Rows:
    """A row for each list of turns; -1: a token that nobody sampled. None: four tokens without turns."""
    request = RolloutRequest("g", Problem("p", "?", "1"), "talk", "agent", (), n=len(turns))
    members = []
    for k, own in enumerate(turns):
        numbers = np.zeros(4) if own is None else np.array(own)
        annotations = {} if own is None else {TURN: numbers.astype(np.int16)}
        sequence = Sequence(
            "agent", [1], [2] * len(numbers), [0.0] * len(numbers), numbers >= 0, annotations=annotations
        )
        reward = RewardResult(1.0 if rewards is None else rewards[k])
        members.append(Trajectory(f"g#{k}", [sequence], FinishReason.STOP, reward=reward))
    return Rows.of([Group(request, members)], [RowRef(0, k) for k in range(len(members))])


def test_by_hand():
    """Turns of 2, 1 and 2 tokens with a message of the other agent after each: the reward 1 is worth 0.9 a
    token before, and 0.5 a turn before."""
    found = rows([0, 0, -1, 1, -1, -1, 2, 2], None)
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
    found = rows([0, 0, -1, 1, 1, 2])
    returns = discounted_returns(found, token_rewards(found), gamma=turn_discounts(found, turn=0.5))
    np.testing.assert_allclose(returns, [0.25, 0.25, 0.0, 0.5, 0.5, 1.0])


@given(
    st.lists(st.lists(st.integers(-1, 2), min_size=1, max_size=8), min_size=1, max_size=4), st.floats(0.1, 1)
)
def test_equal_discounts_are_those_of_tokens(turns, gamma):
    found = rows(*[sorted(own) if own[0] < 0 else own for own in turns])
    rewards = token_rewards(found)
    discounts = turn_discounts(found, token=gamma, turn=gamma)
    expected = discounted_returns(found, rewards, gamma=gamma)
    np.testing.assert_allclose(discounted_returns(found, rewards, gamma=discounts), expected)
