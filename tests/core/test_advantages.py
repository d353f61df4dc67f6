import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import TwoStages, answers, problems

from marsrl_verl.core.advantages import (
    balance_roles,
    comparable_rows,
    group_advantages,
    group_relative,
    role_factors,
)
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory


def group(name: str, role: str, rewards: list[float], lengths: list[int]) -> Group:
    item = RolloutRequest(name, problems(1)[0], role, role, (), len(rewards))
    members = [
        Trajectory(
            f"{name}#{k}",
            [Sequence(role, [1], list(range(length)), [0.0] * length)],
            FinishReason.STOP,
            reward=RewardResult(reward),
        )
        for k, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
    ]
    return Group(item, members)


def row_advantages(groups, role_balance="tokens", role_weights=None, **settings) -> dict[str, float]:
    """The advantage of every row's trajectory, role factor included."""
    rows = Rows.of(groups, comparable_rows(groups))
    values = group_relative(rows, **settings) * balance_roles(rows, role_balance, role_weights)
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
    found, without = (
        group("g", "solver", [1, 0, 1, 0], [2, 2, 2, 2]),
        group("g", "solver", [1, 0, 1], [2, 2, 2]),
    )
    failed = found.trajectories[3]
    if kind == "grading":
        failed.reward = RewardResult(0.0, error="timeout", graded=False)
    else:
        failed.finish = FinishReason.ERROR if kind == "request" else FinishReason.ABORTED
    assert row_advantages([found]) == row_advantages([without])


def test_a_group_whose_difference_is_a_failure_says_nothing():
    found = group("g", "solver", [1, 1, 0], [2, 2, 2])
    found.trajectories[2].reward = RewardResult(0.0, error="timeout", graded=False)
    assert row_advantages([found]) == {} and found.rewards == [1, 1]


def test_rewards_of_one_and_minus_one_give_the_advantages_of_one_and_zero():
    zero_one = group_advantages([1, 0, 1, 1], eps=0.0)
    plus_minus = group_advantages([1, -1, 1, 1], eps=0.0)
    assert zero_one == pytest.approx(plus_minus)


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


def test_role_factors_by_hand():
    tokens = {"solver": 300, "verifier": 100}
    assert role_factors(tokens) == {"solver": 1.0, "verifier": 1.0}
    # 400 tokens, 2 roles: 400 / (2 * 300) and 400 / (2 * 100).
    assert role_factors(tokens, "roles") == pytest.approx({"solver": 2 / 3, "verifier": 2.0})
    assert role_factors(tokens, "roles", {"verifier": 0.5}) == pytest.approx(
        {"solver": 2 / 3, "verifier": 1.0}
    )
    assert role_factors({"solver": 5, "corrector": 0}, "roles") == {"solver": 1.0}
    assert role_factors({}, "roles") == {}


def test_equal_groups_and_sequences_without_tokens_are_left_out():
    groups = [
        group("g1", "solver", [1, 0, 0, 0], [3, 0, 2, 1]),
        group("g2", "solver", [1, 1, 1, 1], [9, 9, 9, 9]),
    ]
    assert row_advantages(groups, eps=0.0) == {"g1#0": 1.5, "g1#2": -0.5, "g1#3": -0.5}


def test_a_sequence_with_a_reward_of_its_own_is_compared_by_it():
    """Two agents of one dialogue may be paid differently (ReMA's formats)."""
    one = group("g", "solver", [1, 0, 1], [2, 2, 2])
    for member, own in zip(one.trajectories, (0.5, None, -1.0), strict=True):
        second = Sequence("critic", [1], [7], [0.0], reward=own)
        member.sequences.append(second)
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
    assert {ref.sequence for ref in comparable_rows([one])} == {0, 1}, (
        "who has none counts with its trajectory"
    )


def test_masked_tokens_do_not_count_as_tokens_of_a_role():
    solver = group("g1", "solver", [1, 0], [4, 4])
    for one in solver.trajectories:
        one.sequence.response_mask = np.array([1, 1, 0, 0], dtype=np.uint8)
    verifier = group("g2", "verifier", [1, 0], [2, 2])
    weights = row_advantages([solver, verifier], role_balance="roles", normalize_std=False)
    assert weights == pytest.approx({"g1#0": 0.5, "g1#1": -0.5, "g2#0": 0.5, "g2#1": -0.5})


def test_an_unscored_trajectory_is_refused_by_id():
    item = TwoStages().first_requests(problems(1)[0], 0)[0]
    members = answers(item).trajectories
    members[1].reward = None
    with pytest.raises(ValueError, match="p0/a/0#1 has not been scored"):
        row_advantages([Group(item, members)])


# --- the loss they are meant for, on a small policy ------------------------------------------------

GROUPS = [
    group("s", "solver", [1, 0, 0, 1], [6, 2, 5, 3]),
    group("v", "verifier", [0, 1, 0, 0], [1, 2, 1, 2]),
    group("c", "corrector", [1, 1, 1, 0], [3, 3, 4, 1]),
]
SEQUENCES = {member.trajectory_id: member.sequence for one in GROUPS for member in one.trajectories}


def gradient(advantages: dict[str, float], parts: list[list[str]]) -> torch.Tensor:
    """Gradient of -1/T sum A_i log p(token), accumulated over micro-batches of trajectory ids."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    total = sum(len(SEQUENCES[name]) for part in parts for name in part)
    for part in parts:
        loss = torch.zeros((), dtype=torch.float64)
        for name in part:
            ids = torch.tensor(SEQUENCES[name].response_ids.astype(int))
            log_probs = torch.log_softmax(logits, dim=-1)[ids, ids.roll(1)]
            loss = loss - advantages[name] * log_probs.sum() / total
        loss.backward()
    assert logits.grad is not None
    return logits.grad


@given(st.permutations(list(SEQUENCES)), st.lists(st.integers(0, 12), max_size=4))
def test_order_and_micro_batches_do_not_change_the_gradient(order, cuts):
    edges = [0, *sorted(cuts), len(order)]
    parts = [order[i:j] for i, j in pairwise(edges) if i < j]
    advantages = row_advantages(GROUPS, role_balance="roles")
    whole = gradient(advantages, [list(SEQUENCES)])
    assert torch.allclose(gradient(advantages, parts), whole, atol=1e-12)


def test_balancing_the_roles_is_the_mean_of_their_own_gradients():
    balanced = gradient(row_advantages(GROUPS, role_balance="roles"), [list(SEQUENCES)])
    plain = row_advantages(GROUPS)
    own = [gradient(plain, [[member.trajectory_id for member in one.trajectories]]) for one in GROUPS]
    assert torch.allclose(balanced, sum(own) / 3, atol=1e-12)


def test_a_role_of_weight_zero_has_no_gradient():
    advantages = row_advantages(GROUPS, role_weights={"solver": 0.0, "corrector": 0.0})
    verifier = [one.trajectory_id for one in GROUPS[1].trajectories]
    share = sum(len(SEQUENCES[name]) for name in verifier) / sum(len(one) for one in SEQUENCES.values())
    assert torch.allclose(
        gradient(advantages, [list(SEQUENCES)]),
        share * gradient(row_advantages(GROUPS), [verifier]),
        atol=1e-12,
    )
