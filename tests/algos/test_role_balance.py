"""The roles' shares of the loss, by hand and on a small policy."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import marsrl, problems, rewarded_group

from marsrl_verl.algos.marsrl.role_balance import balance_roles, balance_verdicts, role_factors
from marsrl_verl.core.credit.advantages import comparable_rows, group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import is_trained, trained_rows
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory


def row_advantages(groups, role_balance="tokens", role_weights=None, **settings) -> dict[str, float]:
    """The advantage of every row's trajectory, role factor included."""
    rows = Rows.of(groups, comparable_rows(groups))
    values = group_relative(rows, **settings) * balance_roles(rows, role_balance, role_weights)
    return {rows.trajectory(row).trajectory_id: float(values[row]) for row in range(len(rows))}


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


def test_masked_tokens_do_not_count_as_tokens_of_a_role():
    solver = rewarded_group("g1", "solver", [1, 0], [4, 4])
    for one in solver.trajectories:
        one.sequence.response_mask = np.array([1, 1, 0, 0], dtype=np.uint8)
    verifier = rewarded_group("g2", "verifier", [1, 0], [2, 2])
    weights = row_advantages([solver, verifier], role_balance="roles", normalize_std=False)
    assert weights == pytest.approx({"g1#0": 0.5, "g1#1": -0.5, "g2#0": 0.5, "g2#1": -0.5})


def test_roles_are_those_of_sequences_and_balanced_by_their_tokens():
    members = [
        Trajectory(
            f"talk#{k}",
            [Sequence(role, [1], range(length), [0.0] * length) for role, length in lengths.items()],
            FinishReason.STOP,
            reward=RewardResult(1.0 - k),
        )
        for k, lengths in enumerate(({"meta": 2, "reason": 3}, {"meta": 1, "reason": 1}))
    ]
    talk = Group(RolloutRequest("talk", problems(1)[0], "a", "meta", (), 2), members)
    rows = Rows.of([talk], comparable_rows([talk]))
    found = balance_roles(rows, "roles", {"reason": 2.0})
    # 7 trained tokens, 2 roles: meta has 3 of them, reason 4.
    meta, reason = 7 / (2 * 3), 2.0 * 7 / (2 * 4)
    assert found == pytest.approx([meta, reason, meta, reason])
    assert balance_roles(rows).tolist() == [1.0] * 4


# --- the loss they are meant for, on a small policy ------------------------------------------------

GROUPS = [
    rewarded_group("s", "solver", [1, 0, 0, 1], [6, 2, 5, 3]),
    rewarded_group("v", "verifier", [0, 1, 0, 0], [1, 2, 1, 2]),
    rewarded_group("c", "corrector", [1, 1, 1, 0], [3, 3, 4, 1]),
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


# --- right and wrong solutions in the Verifier's part ----------------------------------------------


def judged(name: str, right: bool, says_wrong: list[bool], length: int = 2) -> Group:
    """Verdicts on one solution: a verdict is worth 1 where it is the truth."""
    group = rewarded_group(
        name, "verifier", [float(said is not right) for said in says_wrong], [length] * len(says_wrong)
    )
    request = replace(
        group.request, stage="verifier_1", inputs={"solution": "x", "solution_reward": float(right)}
    )
    return Group(request, group.trajectories)


def test_factors_of_judged_solutions_by_hand():
    groups = [
        rewarded_group("s", "solver", [1, 0], [9, 9]),
        judged("w1", False, [True, False, False]),
        judged("w2", False, [False, False, False], length=4),
        judged("r", True, [True, False, False], length=3),
    ]
    rows = Rows.of(groups, comparable_rows(groups))
    assert balance_verdicts(rows).tolist() == [1.0] * 8
    # 9 judgements: 6 of wrong solutions, those that all say the same among them, and 3 of the right one.
    wrong, right = 9 / (2 * 6), 9 / (2 * 3)
    found = balance_verdicts(rows, "classes")
    assert found == pytest.approx([1, 1, wrong, wrong, wrong, right, right, right])
    # Misjudged are 5 of 6 and 1 of 3.
    found = balance_verdicts(rows, "errors")
    wrong, right = wrong * 2 * 5 / 7, right * 2 * 2 / 7
    assert found == pytest.approx([1, 1, wrong, wrong, wrong, right, right, right])


def test_the_trainer_keeps_groups_whose_judgements_are_only_counted():
    """Else a step would have the factors of what it trains. A part of a group is no complete judgement."""
    alike = judged("w", False, [False, False, False])
    part = Group(replace(alike.request, n=4), alike.trajectories)
    unknown = judged("u", False, [])
    for balance, expected in (("inputs", False), ("classes", True), ("errors", True)):
        method = marsrl(verdict_balance=balance)
        assert [is_trained(method, [one], 1) for one in (alike, part, unknown)] == [expected, False, False]
        assert trained_rows(method, [alike], 1) == []


def test_a_judgement_is_counted_in_the_step_that_trains_it():
    """Of the wrong solution's three verdicts two were in an earlier step: 3 judgements, 1 of them of it."""
    wrong = judged("w", False, [True, False, False])
    wrong.trained_before = frozenset({"w#0", "w#1"})
    groups = [wrong, judged("r", True, [True, False])]
    rows = Rows.of(groups, comparable_rows(groups))
    assert balance_verdicts(rows, "classes") == pytest.approx([3 / 2, 3 / 4, 3 / 4])


@pytest.mark.parametrize("balance", ["classes", "errors"])
def test_a_step_that_judged_one_class_alone_does_not_train_the_verifier(balance):
    groups = [rewarded_group("s", "solver", [1, 0], [9, 9]), judged("w", False, [True, False])]
    rows = Rows.of(groups, comparable_rows(groups))
    assert balance_verdicts(rows, balance).tolist() == [1.0, 1.0, 0.0, 0.0]


def push_to_wrong(groups: list[Group], balance: str) -> float:
    """How much the step's advantages favour the verdict Wrong."""
    rows = Rows.of(groups, comparable_rows(groups))
    factors = balance_verdicts(rows, balance)
    advantages = group_relative(rows, normalize_std=False)
    said = [rows.trajectory(row).value != _solved(rows, row) for row in range(len(rows))]
    return float(np.sum(np.where(said, 1.0, -1.0) * advantages * factors))


def _solved(rows: Rows, row: int) -> float:
    return rows.group(row).request.inputs["solution_reward"]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 7))
def test_who_can_not_tell_gains_nothing_by_one_verdict(wrong, right, times):
    """Of eight verdicts on every solution `times` say Wrong: the push towards Wrong is 0, whatever the share
    of wrong solutions; without the balance it is that of the larger class, and by errors it leads to the
    middle."""
    says_wrong = [True] * times + [False] * (8 - times)
    groups = [judged(f"w{k}", False, says_wrong) for k in range(wrong)]
    groups += [judged(f"r{k}", True, says_wrong) for k in range(right)]
    assert push_to_wrong(groups, "classes") == pytest.approx(0.0, abs=1e-5)
    assert np.sign(np.round(push_to_wrong(groups, "inputs"), 5)) == np.sign(wrong - right)
    assert np.sign(np.round(push_to_wrong(groups, "errors"), 5)) == np.sign(4 - times)


def test_rare_groups_of_one_class_push_nowhere_in_the_long_run():
    """A Verifier that says Wrong once in thirty times, whatever it sees; three quarters of the solutions are
    wrong. Most steps have a group to compare of one class at most; their pushes cancel all the same."""
    rng = np.random.default_rng(7)
    pushes = {"inputs": [], "classes": []}
    for _ in range(1000):
        groups = [judged(f"g{k}", bool(k < 2), (rng.random(8) < 1 / 30).tolist()) for k in range(8)]
        if all(len(set(group.rewards)) == 1 for group in groups):
            continue
        for balance, found in pushes.items():
            found.append(push_to_wrong(groups, balance))
    inputs, classes = (np.array(found) for found in pushes.values())
    assert inputs.mean() > 5 * inputs.std() / np.sqrt(len(inputs))
    assert abs(classes.mean()) < 3 * classes.std() / np.sqrt(len(classes))
