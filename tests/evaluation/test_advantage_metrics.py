from __future__ import annotations

import numpy as np
import pytest

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows, token_advantages
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory
from marsrl_verl.evaluation.training_metrics import advantage_metrics


def rows(*lengths: int, masked: tuple[int, ...] = ()) -> Rows:
    """Rows of such lengths, each a trajectory of its own; `masked` are tokens that nobody chose, in row 0."""
    members = []
    for k, length in enumerate(lengths):
        mask = [int(k > 0 or i not in masked) for i in range(length)]
        sequence = Sequence("solver", [1], [2] * length, [0.0] * length, mask)
        members.append(Trajectory(f"g#{k}", [sequence], FinishReason.STOP))
    request = RolloutRequest("g", Problem("p", "q", "a"), "solver", "solver", (), len(members))
    return Rows.of([Group(request, members)], [RowRef(0, k) for k in range(len(members))])


def values(*parts: tuple[int, float]) -> np.ndarray:
    return np.concatenate([np.full(length, value, dtype=np.float32) for length, value in parts])


def test_tokens_weigh_equally():
    found = advantage_metrics(rows(4, 4, 2), values((3, 0.5), (1, 0.0), (4, -1.0), (2, 0.0)))
    assert found == {
        "batch/advantage_mean": pytest.approx((3 * 0.5 - 4) / 10),
        "batch/advantage_min": -1.0,
        "batch/advantage_max": 0.5,
        "batch/samples_with_advantage_share": pytest.approx(2 / 3),
        "batch/tokens_with_advantage_share": pytest.approx(7 / 10),
    }


def test_tokens_that_nobody_chose_do_not_count():
    found = advantage_metrics(rows(3, 2, masked=(0,)), values((1, 9.0), (2, 0.0), (2, 1.0)))
    assert (found["batch/advantage_max"], found["batch/advantage_mean"]) == (1.0, 0.5)
    assert found["batch/samples_with_advantage_share"] == 0.5


def test_nothing_trained_gives_nothing():
    assert advantage_metrics(rows(), np.zeros(0, dtype=np.float32)) == {}
    assert advantage_metrics(rows(1, masked=(0,)), np.ones(1, dtype=np.float32)) == {}


def test_what_was_trained_is_told_in_parts_of_equal_advantage():
    found = token_advantages(rows(4, 0, 2), values((3, 0.5), (1, -1.0), (2, 0.25)))
    assert found == {"g#0": [[(3, 0.5), (4, -1.0)]], "g#1": [[]], "g#2": [[(2, 0.25)]]}


def test_a_sequence_that_was_not_trained_has_no_part():
    one = Trajectory(
        "g#0", [Sequence(role, [1], [2], [0.0]) for role in ("plan", "solve")], FinishReason.STOP
    )
    request = RolloutRequest("g", Problem("p", "q", "a"), "solver", "plan", (), 1)
    selected = Rows.of([Group(request, [one])], [RowRef(0, 0, 1)])
    assert token_advantages(selected, values((1, 2.0))) == {"g#0": [[], [(1, 2.0)]]}
