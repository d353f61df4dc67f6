"""Masking of well-mastered positive tokens, with values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.credit.mastered_tokens import EntropyScope, MasteredTokens, MasteredTokensConfig
from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import ENTROPIES, OLD_LOG_PROBS, RESPONSE_MASK, RowRef, Rows
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Trajectory

# Four rows: entropies 0.1 and 0.3 | 0.05 | 0.5 | 0.1, the last one with a negative advantage.
PROBABILITIES = [[0.995, 0.5], [0.995, 0.99], [0.999, 0.2], [0.999, 0.999]]
ENTROPY = [[0.1, 0.3], [0.05, 9.0], [0.5, 0.5], [0.1, 0.1]]
ADVANTAGES = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]]
MASK = [[1, 1], [1, 0], [1, 1], [1, 1]]
ROLES = ["solver", "solver", "verifier", "verifier"]


def on(**settings) -> MasteredTokens:
    return MasteredTokens(MasteredTokensConfig(enabled=True, **settings))


ON = on()


def packed(values, order=range(4), dtype=np.float32):
    return np.array([values[row] for row in order], dtype=dtype).reshape(-1)


def rows(order=range(4), mask=MASK) -> Rows:
    members = [
        Trajectory(f"g#{k}", [Sequence(ROLES[row], [1], [2, 3], [0.0, 0.0], mask[row])], FinishReason.STOP)
        for k, row in enumerate(order)
    ]
    request = RolloutRequest("g", Problem("p", "", ""), "solver", "solver", (), 4)
    found = Rows.of([Group(request, members)], [RowRef(0, k) for k in range(4)])
    found.columns |= {OLD_LOG_PROBS: np.log(packed(PROBABILITIES, order)), ENTROPIES: packed(ENTROPY, order)}
    return found


def masked(order=range(4), **settings) -> list[list[bool]]:
    found = on(**settings).masks(rows(order), packed(ADVANTAGES, order))
    return found.reshape(4, 2).tolist()


def test_mastered_tokens_are_probable_positive_and_sampled():
    # 0.5, 0.2: improbable; 0.99 of the second row: no token of the model; the last row: negative
    expected = [[True, False], [True, False], [True, False], [False, False]]
    assert ON.mastered(rows(), packed(ADVANTAGES)).reshape(4, 2).tolist() == expected
    assert not ON.mastered(rows(), np.zeros(8, dtype=np.float32)).any()


def test_sequence_scope_looks_at_each_rows_own_tokens():
    # means: 0.2 (not below 0.2), 0.05 (its second token is no token of the model), 0.5, 0.1
    assert masked(target_entropy=0.1999) == [[False, False], [True, False], [False, False], [False, False]]
    assert masked(target_entropy=0.21)[0] == [True, False]


def test_batch_scope_looks_at_all_tokens():
    # (0.1 + 0.3 + 0.05 + 0.5 + 0.5 + 0.1 + 0.1) / 7 = 0.2357
    assert not any(map(any, masked(scope=EntropyScope.BATCH, target_entropy=0.235)))
    expected = [[True, False], [True, False], [True, False], [False, False]]
    assert masked(scope=EntropyScope.BATCH, target_entropy=0.236) == expected


def test_role_scope_looks_at_the_roles_tokens():
    # solver: 0.45 / 3 = 0.15; verifier: 1.2 / 4 = 0.3
    assert masked(scope=EntropyScope.ROLE) == [[True, False], [True, False], [False, False], [False, False]]


def test_the_probability_threshold_counts_itself():
    certain = rows()
    certain.columns[OLD_LOG_PROBS] = np.zeros(8, dtype=np.float32)
    found = on(probability=1.0).mastered(certain, np.ones(8, dtype=np.float32))
    assert found.tolist() == certain.columns[RESPONSE_MASK].astype(bool).tolist()


@given(st.sampled_from(list(EntropyScope)), st.permutations(range(4)))
def test_the_order_of_rows_does_not_matter(scope, order):
    expected = masked(scope=scope)
    assert masked(order, scope=scope) == [expected[row] for row in order]


def test_where_it_is_off_nothing_is_read_or_masked():
    bare = rows()
    del bare.columns[OLD_LOG_PROBS], bare.columns[ENTROPIES]
    assert MasteredTokens().masks(bare, packed(ADVANTAGES)) is None


def test_nothing_is_masked_without_tokens():
    nothing = rows(mask=[[0, 0]] * 4)
    for scope in EntropyScope:
        found = on(scope=scope, target_entropy=math.inf).masks(nothing, packed(ADVANTAGES))
        assert not found.any()
