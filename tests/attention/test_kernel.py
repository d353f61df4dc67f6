"""The Triton kernels agree with the chunked sums. Without a GPU they run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from attention_cases import Case, packed_layout, random_case

from marsrl_verl.attention.blocks import plan_visits
from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.column_sums import ColumnSums
from marsrl_verl.attention.kernel import KEY_BLOCK
from marsrl_verl.attention.lse_kernel import LSE_QUERY_BLOCK, triton_lse

pytestmark = pytest.mark.usefixtures("interpreter")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 1e-7} if DEVICE == "cpu" else {"rtol": 1e-2, "atol": 1e-4},
    torch.bfloat16: {"rtol": 2e-4, "atol": 1e-6},
    torch.float16: {"rtol": 2e-4, "atol": 1e-6},
}
LONG = [[40, 5, 30, 60, 2, 50, 33, 1, 21]]
"""242 tokens: more than a block of keys and several of queries."""


def sums_of(case: Case, window: int | None = None) -> torch.Tensor:
    layout = case.layout.to(DEVICE)
    query, key = case.query.to(DEVICE), case.key.to(DEVICE)
    return ColumnSums(layout, "triton")(query, key, case.scale, window=window).cpu()


def agrees(case: Case, window: int | None = None) -> None:
    expected = chunked_column_sums(case.query, case.key, case.layout, case.scale, window=window)
    assert expected.any()
    torch.testing.assert_close(sums_of(case, window), expected, **TOLERANCE[case.query.dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [64, 128])
def test_a_sequence_of_several_blocks(dtype, size):
    agrees(random_case(LONG, heads=2, kv_heads=1, size=size, dtype=dtype))


@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (4, 2)])
def test_shared_key_heads(heads):
    agrees(random_case([[3, 9, 30, 5, 7, 20]], heads=heads[0], kv_heads=heads[1]))


def test_packed_sequences_of_uneven_lengths():
    agrees(random_case([[2, 3, 70, 4, 90], [1, 1, 1, 1], [5], [10, 20, 130, 6, 9]], heads=2, kv_heads=1))


@pytest.mark.parametrize("window", [15, 40, 10_000])
def test_sliding_window(window):
    case = random_case([[10, 20, 90, 40, 30]], delta=1, heads=1, kv_heads=1)
    agrees(case, window)


@pytest.mark.parametrize("delta", [1, 4])
def test_delta(delta):
    agrees(random_case([[5, 6, 7, 8, 9, 10, 11]], delta=delta, heads=1, kv_heads=1))


def test_nothing_to_measure():
    assert not sums_of(random_case([[5, 6, 7]], delta=3)).any()


def test_blocks_that_add_nothing_are_not_visited():
    layout = packed_layout([[300, 10, 100, 100, 100]], delta=2)
    plan = plan_visits(layout, key_block=KEY_BLOCK, query_block=LSE_QUERY_BLOCK)
    # The first measured step is 2 (tokens 310 to 410), its first query is in step 4, at token 510.
    assert plan.keys.key_start.tolist() == [256, 384]
    assert plan.keys.query_start.tolist() == [510, 510]
    assert plan.queries.query_start.tolist() == [510]


def test_log_sum_exp():
    case = random_case([[2, 3, 70, 4, 90]], delta=1, heads=2, kv_heads=1, unmeasured=())
    plan = plan_visits(case.layout, key_block=KEY_BLOCK, query_block=LSE_QUERY_BLOCK)
    blocks = type(plan.queries)(
        *(getattr(plan.queries, name).to(DEVICE) for name in ("query_start", "query_end", "key_start"))
    )
    lse = triton_lse(case.query.to(DEVICE), case.key.to(DEVICE), blocks, case.scale).cpu()
    scores = torch.einsum("qhd,kd->hqk", case.query, case.key[:, 0]) * case.scale
    total = case.layout.total
    scores = scores.masked_fill(torch.ones(total, total).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(lse[:, 2:], scores.logsumexp(-1)[:, 2:], rtol=1e-5, atol=1e-5)


def test_repeated_runs_are_equal_bit_by_bit():
    case = random_case(LONG, heads=2, kv_heads=1)
    assert torch.equal(sums_of(case), sums_of(case))


def test_a_head_size_without_a_kernel_is_refused():
    with pytest.raises(ValueError, match="head size 48"):
        sums_of(random_case([[3, 4, 5, 6]], delta=1, size=48))
