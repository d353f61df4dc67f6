"""A step's rows: packed, spread and summed; trajectories with two sequences; any order of the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import marsrl, problems

from marsrl_verl.core.credit.advantages import comparable_rows, group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.rows import RESPONSE_MASK, ROLLOUT_LOG_PROBS, TOKEN_VERSIONS, RowRef, Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory


def sequence(role: str, *mask: int, version: int = 0, **annotations) -> Sequence:
    length = len(mask)
    found = {
        name: np.array(values, np.int16 if name == "turn" else np.float32)
        for name, values in annotations.items()
    }
    return Sequence(role, [1], range(length), [-0.5] * length, mask, [(length, version)], annotations=found)


def group(name: str, *members: tuple[float, list[Sequence]]) -> Group:
    item = RolloutRequest(name, problems(1)[0], "a", members[0][1][0].role, (), len(members))
    return Group(
        item,
        [
            Trajectory(f"{name}#{k}", sequences, FinishReason.STOP, reward=RewardResult(reward))
            for k, (reward, sequences) in enumerate(members)
        ],
    )


TALK = group(
    "talk",
    (1.0, [sequence("meta", 1, 1, 0, version=2, turn=[0, 0, 1]), sequence("reason", 1, entropy=[0.5])]),
    (0.0, [sequence("meta", 1), sequence("reason", 1, 0, 1, 1)]),
)
"""Two trajectories of two agents: 3 and 4 trained tokens, 3 of meta and 4 of reason."""
PLAIN = group(
    "plain", (1.0, [sequence("solver", 1, 1)]), (0.0, [sequence("solver", 1)]), (0.0, [sequence("solver")])
)


def test_packed_by_hand():
    rows = Rows.of([PLAIN, TALK], [RowRef(1, 1, 1), RowRef(0, 2), RowRef(1, 0)], ("turn", "entropy"))
    assert (len(rows), rows.tokens, rows.offsets.tolist()) == (3, 7, [0, 4, 4, 7])
    assert rows.columns[RESPONSE_MASK].tolist() == [1, 0, 1, 1, 1, 1, 0]
    assert rows.columns[TOKEN_VERSIONS].tolist() == [0, 0, 0, 0, 2, 2, 2]
    assert rows.columns[ROLLOUT_LOG_PROBS].tolist() == [-0.5] * 7
    np.testing.assert_array_equal(rows.columns["turn"], [-1] * 4 + [0, 0, 1])
    assert np.isnan(rows.columns["entropy"]).all()
    kinds = {name: str(column.dtype) for name, column in rows.columns.items()}
    assert kinds == {
        RESPONSE_MASK: "uint8", ROLLOUT_LOG_PROBS: "float32", TOKEN_VERSIONS: "int32",
        "turn": "int16", "entropy": "float32",
    }  # fmt: skip
    assert rows.row_of_token().tolist() == [0] * 4 + [2] * 3
    assert rows.trained_tokens().tolist() == [3, 0, 2]
    assert [rows.trajectory(row).trajectory_id for row in range(3)] == ["talk#1", "plain#2", "talk#0"]
    assert [rows.sequence(row).role for row in range(3)] == ["reason", "solver", "meta"]
    assert rows.group(1) is PLAIN and rows.slice(2) == slice(4, 7)


def test_nothing_selected():
    rows = Rows.of([PLAIN], [], ("turn",))
    assert (len(rows), rows.tokens) == (0, 0)
    assert rows.trained_tokens().tolist() == [] == rows.to_tokens(np.zeros(0)).tolist()


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=4), max_size=6))
def test_sums_and_spreads_are_each_rows_own(values):
    members = group(
        "g", *[(0.0, [sequence("a", *[1] * len(one))]) for one in values] or [(0.0, [sequence("a")])]
    )
    rows = Rows.of([members], [RowRef(0, k) for k in range(len(values))])
    flat = np.array([value for one in values for value in one], dtype=np.float64)
    assert rows.row_sums(flat) == pytest.approx([sum(one) for one in values])
    numbers = np.arange(len(values))
    assert rows.to_tokens(numbers).tolist() == [row for row, one in enumerate(values) for _ in one]


def test_what_is_not_finite_in_one_row_does_not_reach_another():
    rows = Rows.of([PLAIN, TALK], [RowRef(0, 0), RowRef(0, 1), RowRef(0, 2), RowRef(1, 0)])
    found = rows.row_sums(np.array([np.nan, 1.0, -np.inf, 1e-9, 2e-9, 3e-9]))
    assert np.isnan(found[0]) and found[1] == -np.inf
    assert found[2:].tolist() == [0.0, pytest.approx(6e-9, rel=1e-12)], "nor does rounding"


def test_every_sequence_of_a_trajectory_gets_its_groups_advantage():
    refs = comparable_rows([PLAIN, TALK])
    assert refs == [RowRef(0, 0), RowRef(0, 1), *[RowRef(1, one, at) for one in (0, 1) for at in (0, 1)]]
    rows = Rows.of([PLAIN, TALK], refs)
    found = group_relative(rows, normalize_std=False)
    # The third plain trajectory has no token; its reward counts in the mean 1/3.
    assert found == pytest.approx([2 / 3, -1 / 3, 0.5, 0.5, -0.5, -0.5])


@given(st.permutations(range(6)))
def test_the_order_of_the_rows_changes_no_rows_advantage(order):
    method = marsrl(role_balance="roles", role_weights={"meta": 0.5})
    groups = [PLAIN, TALK]
    refs = comparable_rows(groups)

    def by_ref(chosen: list[RowRef]) -> dict[RowRef, list[float]]:
        rows = Rows.of(groups, chosen)
        advantages = method.credit.advantages(rows)
        return {ref: advantages[rows.slice(row)].tolist() for row, ref in enumerate(chosen)}

    assert by_ref([refs[at] for at in order]) == by_ref(refs)


def test_refs_are_ordered_as_the_groups_are():
    assert sorted([RowRef(1, 0), RowRef(0, 2), RowRef(0, 1, 1), RowRef(0, 1)]) == [
        RowRef(0, 1), RowRef(0, 1, 1), RowRef(0, 2), RowRef(1, 0),
    ]  # fmt: skip
