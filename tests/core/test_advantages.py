import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import rewarded_group

from marsrl_verl.core.credit.advantages import comparable_rows, group_advantages, group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult


def row_advantages(groups, **settings) -> dict[str, float]:
    """The advantage of every row's trajectory."""
    rows = Rows.of(groups, comparable_rows(groups))
    values = group_relative(rows, **settings)
    return {rows.trajectory(row).trajectory_id: float(values[row]) for row in range(len(rows))}


def test_advantages_by_hand():
    # Mean 1/4; deviations 3/4 and three times -1/4; squares sum to 12/16; /3 = 1/4; std 1/2.
    assert group_advantages([1, 0, 0, 0], eps=0.0) == [1.5, -0.5, -0.5, -0.5]
    assert group_advantages([1, 0, 0, 0], normalize_std=False) == [0.75, -0.25, -0.25, -0.25]
    # Mean 1/2, squares sum to 1/2, /1, std sqrt(1/2).
    assert group_advantages([1, 0], eps=0.0) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


@pytest.mark.parametrize("kind", ["grading", "request", "aborted"])
def test_a_failure_is_no_wrong_answer(kind):
    """The failed trajectory is not trained, and the others' mean is as if it had not been asked for."""
    found = rewarded_group("g", "solver", [1, 0, 1, 0], [2, 2, 2, 2])
    without = rewarded_group("g", "solver", [1, 0, 1], [2, 2, 2])
    failed = found.trajectories[3]
    if kind == "grading":
        failed.reward = RewardResult(0.0, error="timeout", graded=False)
    else:
        failed.finish = FinishReason.ERROR if kind == "request" else FinishReason.ABORTED
    assert row_advantages([found]) == row_advantages([without])


def test_a_group_whose_difference_is_a_failure_says_nothing():
    found = rewarded_group("g", "solver", [1, 1, 0], [2, 2, 2])
    found.trajectories[2].reward = RewardResult(0.0, error="timeout", graded=False)
    assert row_advantages([found]) == {} and found.rewards == [1, 1]


def test_rewards_of_one_and_minus_one_give_the_advantages_of_one_and_zero():
    plus_minus = group_advantages([1, -1, 1, 1], eps=0.0)
    assert group_advantages([1, 0, 1, 1], eps=0.0) == pytest.approx(plus_minus)


def test_equal_rewards_have_no_advantage_and_a_single_reward_is_refused():
    assert group_advantages([1, 1, 1]) == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="at least 2 rewards"):
        group_advantages([1])


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=2, max_size=8))
def test_advantages_sum_to_zero_and_follow_the_rewards(rewards):
    advantages = group_advantages(rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-6)
    order = sorted(range(len(rewards)), key=lambda i: rewards[i])
    assert all(advantages[i] <= advantages[j] for i, j in pairwise(order))


def test_equal_groups_and_sequences_without_tokens_are_left_out():
    groups = [
        rewarded_group("g1", "solver", [1, 0, 0, 0], [3, 0, 2, 1]),
        rewarded_group("g2", "solver", [1, 1, 1, 1], [9, 9, 9, 9]),
    ]
    assert row_advantages(groups, eps=0.0) == {"g1#0": 1.5, "g1#2": -0.5, "g1#3": -0.5}


def test_a_sequence_with_a_reward_of_its_own_is_compared_by_it():
    """Two agents of one dialogue may be paid differently (ReMA's formats)."""
    one = rewarded_group("g", "solver", [1, 0, 1], [2, 2, 2])
    for member, own in zip(one.trajectories, (0.5, None, -1.0), strict=True):
        member.sequences.append(Sequence("critic", [1], [7], [0.0], reward=own))
    rows = Rows.of([one], comparable_rows([one]))
    found = group_relative(rows)
    by_role = {role: [] for role in ("solver", "critic")}
    for row in range(len(rows)):
        by_role[rows.sequence(row).role].append(found[row])
    assert by_role["solver"] == pytest.approx(group_advantages([1, 0, 1]))
    assert by_role["critic"] == pytest.approx(group_advantages([0.5, 0, -1]))
    for member in one.trajectories:
        member.sequences[1].reward = 0.25
    assert {ref.sequence for ref in comparable_rows([one])} == {0}, "the critics are all paid alike"
    one.trajectories[1].sequences.pop()
    assert {ref.sequence for ref in comparable_rows([one])} == {0, 1}, "who has none has its trajectory's"


def test_an_unscored_trajectory_is_refused_by_id():
    found = rewarded_group("g", "solver", [1, 0], [1, 1])
    found.trajectories[1].reward = None
    with pytest.raises(ValueError, match="g#1 has not been scored"):
        row_advantages([found])


def test_parts_are_compared_with_all_that_has_ended():
    """Two of the group were trained before; the mean is 3/4."""
    group = rewarded_group("g", "solver", [1, 0, 1, 1], [1, 1, 1, 1])
    group = Group(group.request, group.trajectories, trained_before=frozenset({"g#0", "g#1"}))
    assert row_advantages([group], normalize_std=False) == {"g#2": 0.25, "g#3": 0.25}
