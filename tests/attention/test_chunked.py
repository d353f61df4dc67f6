"""The chunked column sums against the definition, and against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from attention_cases import packed_layout, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fci_definition import influence_by_definition
from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.column_sums import ColumnSums, step_influence
from marsrl_verl.attention.layout import NEVER, OUTSIDE, build_layout


def test_a_sequence_worked_out_by_hand():
    """Four tokens, each a step, all scores 0: token q gives every token up to itself 1/(q+1)."""
    layout = packed_layout([[1, 1, 1, 1]], delta=1, unmeasured=())
    zeros = torch.zeros(4, 1, 16)
    sums = chunked_column_sums(zeros, zeros, layout, 1.0)
    expected = [1 / 2 + 1 / 3 + 1 / 4, 1 / 3 + 1 / 4, 1 / 4, 0.0]
    torch.testing.assert_close(sums[0], torch.tensor(expected))


def test_unequal_scores_worked_out_by_hand():
    """Two steps of two tokens. The last two tokens look at token 0 with score ln 3, else 0, so that it has
    3/5 and 3/6 of their attention, token 1 has 1/5 and 1/6; a step's mean halves both ways."""
    layout = packed_layout([[2, 2]], delta=1, unmeasured=())
    query = torch.zeros(4, 1, 16)
    key = torch.zeros(4, 1, 16)
    query[2:, 0, 0] = 1.0
    key[0, 0, 0] = math.log(3)
    sums = chunked_column_sums(query, key, layout, 1.0)
    torch.testing.assert_close(sums[0, :2], torch.tensor([(3 / 5 + 3 / 6) / 2, (1 / 5 + 1 / 6) / 2]))
    influence = step_influence(sums, layout)
    torch.testing.assert_close(influence, torch.tensor([(0.55 + 11 / 60) / 2, 0.0]))


@given(
    st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=9), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from([(1, 1), (4, 1), (6, 3)]),
    st.integers(1, 9),
    st.sampled_from([None, 1, 3, 1000]),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_chunked_is_the_definition(sequences, delta, heads, chunk, window, seed):
    shape = {"heads": heads[0], "kv_heads": heads[1], "dtype": torch.float64}
    case = random_case(sequences, delta=delta, seed=seed, **shape)
    expected = influence_by_definition(case.query, case.key, case.layout, case.scale, window)
    sums = chunked_column_sums(case.query, case.key, case.layout, case.scale, window=window, chunk=chunk)
    torch.testing.assert_close(step_influence(sums, case.layout), expected.amax(0), rtol=1e-6, atol=1e-12)
    measured = case.layout.step_of_token[case.layout.key_steps != NEVER]
    assert not step_influence(sums, case.layout).index_fill(0, measured, 0.0).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype):
    case = random_case([[5, 6, 7, 8, 9]], dtype=dtype)
    sums = chunked_column_sums(case.query, case.key, case.layout, case.scale)
    exact = chunked_column_sums(case.query.double(), case.key.double(), case.layout, case.scale)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("ids", "measured", "sequences", "delta", "message"),
    [
        ([0, 1], [1, 1], None, 0, "delta is 0"),
        ([0, 1], [1], None, 1, "shape"),
        ([OUTSIDE, OUTSIDE], [0, 0], None, 1, "no token"),
        ([1, 0], [1, 1], None, 1, "fall"),
        ([0, OUTSIDE, 1], [1, 0, 1], None, 1, "contiguous"),
        ([0, 0, 0], [1, 1, 1], [0, 1, 0], 1, "contiguous"),
        ([0, 1, 1], [0, 1, 0], None, 1, "part"),
        ([0, 1], [1, 1], [0], 1, "sequence ids"),
    ],
)
def test_refused_layouts(ids, measured, sequences, delta, message):
    owners = None if sequences is None else torch.tensor(sequences)
    with pytest.raises(ValueError, match=message):
        build_layout(torch.tensor(ids), torch.tensor(measured).bool(), delta=delta, sequence_ids=owners)


def test_queries_that_do_not_fit_are_refused():
    case = random_case([[2, 2, 2]])
    with pytest.raises(ValueError, match="layout"):
        ColumnSums(case.layout, "chunked")(case.query[:-1], case.key[:-1], 1.0)
    with pytest.raises(ValueError, match="evenly"):
        ColumnSums(case.layout, "chunked")(case.query[:, :3], case.key, 1.0)
