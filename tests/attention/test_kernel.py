"""The Triton kernels agree with the chunked sums. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from attention_cases import case_of, packed_layout, padded_layout, random_case
from kernel_cases import DEVICE, agrees, expected_lse, lse_agrees, plan_of, sums_of

from marsrl_verl.attention.column_sums import ColumnSums
from marsrl_verl.attention.kernel import triton_column_sums
from marsrl_verl.attention.layout import OUTSIDE, build_layout

pytestmark = pytest.mark.usefixtures("interpreter")

LONG = [[40, 5, 30, 60, 2, 50, 33, 1, 21]]
"""242 tokens: more than a block of keys and several of queries."""


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 64), (torch.float32, 128)]
)
def test_a_sequence_of_several_blocks(dtype, size):
    agrees(random_case(LONG, heads=2, kv_heads=1, size=size, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (4, 2)])
def test_shared_key_heads(heads):
    agrees(random_case([[3, 9, 30, 5, 7, 20]], heads=heads[0], kv_heads=heads[1]))


def test_packed_sequences_of_uneven_lengths():
    agrees(random_case([[2, 3, 70, 4, 90], [1, 1, 1, 1], [5], [10, 20, 130, 6, 9]], heads=2, kv_heads=1))


def test_nothing_to_measure():
    assert not sums_of(random_case([[5, 6, 7]], delta=3)).any()


def test_blocks_that_add_nothing_are_not_visited():
    layout = packed_layout([[300, 10, 100, 100, 100]], delta=2)
    plan = plan_of(layout)
    # The first measured step is 2 (tokens 310 to 410), its first query is in step 4, at token 510.
    assert plan.keys.key_start.tolist() == [256, 384]
    assert plan.keys.query_start.tolist() == [510, 510]
    # Keys of the second block are of steps 2 and 3, and for those of step 3 no query counts.
    assert plan.keys.full_start.tolist() == [510, 610]
    assert plan.keys.query_end.tolist() == [610, 610]
    assert plan.queries.query_start.tolist() == [510]


UNEVEN = [[5, 9, 140, 20, 130], [7], [3, 2, 30, 4, 20, 6], [40, 1, 1, 1, 1, 150]]
"""Rows of 304, 7, 65 and 194 tokens: more than a block of queries and less than one."""


@pytest.mark.parametrize("left", [False, True])
def test_padded_rows_with_gaps_between_them(left):
    case = case_of(padded_layout(UNEVEN, width=310, delta=1, left=left), heads=2, kv_heads=1)
    agrees(case)
    lse_agrees(case)


def test_a_packed_row_with_padding_behind_it():
    packed = packed_layout(UNEVEN, delta=1)
    padding = torch.full((33,), OUTSIDE)
    owner = torch.arange(4).repeat_interleave(torch.tensor([304, 7, 65, 194]))
    steps = torch.cat([packed.query_steps.long(), padding])
    layout = build_layout(steps, steps > 1, delta=1, sequence_ids=torch.cat([owner, torch.full((33,), 4)]))
    case = case_of(layout, heads=2, kv_heads=1)
    agrees(case)
    lse_agrees(case)


def test_what_is_in_the_padding_does_not_matter():
    layout = padded_layout(UNEVEN, width=310, delta=1)
    case = case_of(layout, heads=2, kv_heads=1)
    expected = sums_of(case)
    gaps = layout.query_steps == OUTSIDE
    case.query[gaps], case.key[gaps] = float("nan"), float("nan")
    assert torch.equal(sums_of(case), expected)


def test_the_log_sum_exp_may_lie_query_by_query_in_memory():
    case = random_case(LONG, heads=2, kv_heads=1)
    lse = expected_lse(case).T.contiguous().T.to(DEVICE)
    query, key, layout = case.query.to(DEVICE), case.key.to(DEVICE), case.layout.to(DEVICE)
    sums = triton_column_sums(query, key, lse, layout, plan_of(case.layout).keys, case.scale)
    torch.testing.assert_close(sums, ColumnSums(layout, "triton")(query, key, case.scale))


def test_repeated_runs_are_equal_bit_by_bit():
    case = random_case(LONG, heads=2, kv_heads=1)
    assert torch.equal(sums_of(case), sums_of(case))


def test_a_head_size_without_a_kernel_is_refused():
    with pytest.raises(ValueError, match="head size 48"):
        sums_of(random_case([[3, 4, 5, 6]], delta=1, size=48))
