"""The Triton kernels at the end of a row of 131,072 tokens, where 32 bits do not hold a token's place.

Queries and keys are columns of a table with wide rows, of which only the last rows are ever touched: the
memory of the others is asked for, and on the processor never taken.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from attention_cases import Case, case_of, packed_layout
from kernel_cases import DEVICE, expected_lse, plan_of

from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.kernel import triton_column_sums
from marsrl_verl.attention.lse_kernel import triton_lse

pytestmark = pytest.mark.usefixtures("interpreter")

TOKENS, ROW = 131_072, 16_640
"""The last 2,000 rows begin beyond element 2**31."""
WINDOW = 150
NEAR = [200, 60, 100, 90, 62]
"""Steps of the last 512 tokens. With the window their queries see nothing before them."""


def at_the_end(near: torch.Tensor, table: torch.Tensor, column: int) -> torch.Tensor:
    """(TOKENS, H, D) in the table from `column` on, of which the last rows are `near`."""
    _, heads, size = near.shape
    # A place that wraps around falls into the first half of the table, not out of it.
    first = 2**31 + column
    far = table.as_strided((TOKENS, heads, size), (ROW, size, 1), first)
    far[-len(near) :] = near
    return far


@pytest.fixture(scope="module")
def far_and_near() -> tuple[Case, Case]:
    """A row of 131,072 tokens, nearly all of them prompt, and its last 512 tokens as a row of their own."""
    near = case_of(packed_layout([NEAR], delta=1), heads=4, kv_heads=2, dtype=torch.bfloat16)
    layout = packed_layout([[TOKENS - sum(NEAR[1:]), *NEAR[1:]]], delta=1)
    table = torch.empty(2**31 + TOKENS * ROW, dtype=torch.bfloat16, device=DEVICE)
    query, key = at_the_end(near.query, table, 0), at_the_end(near.key, table, ROW - 2 * 16)
    return Case(query, key, layout, near.scale), near


def test_column_sums(far_and_near):
    far, near = far_and_near
    lse = torch.zeros(4, TOKENS, device=DEVICE)
    lse[:, -512:] = expected_lse(near, WINDOW)
    sums = triton_column_sums(
        far.query, far.key, lse, far.layout.to(DEVICE), plan_of(far.layout).keys, far.scale, window=WINDOW
    ).cpu()
    expected = chunked_column_sums(near.query, near.key, near.layout, near.scale, window=WINDOW)
    assert (expected > 0).any(dim=0).sum() >= 150
    torch.testing.assert_close(sums[:, -512:], expected, rtol=2e-4, atol=1e-6)
    assert not sums[:, :-512].any()


def test_log_sum_exp(far_and_near):
    far, near = far_and_near
    blocks = plan_of(far.layout).queries
    assert blocks.query_start.min() > TOKENS - 512 + WINDOW
    lse = triton_lse(far.query, far.key, blocks, far.scale, window=WINDOW).cpu()
    first = int(blocks.query_start.min())
    torch.testing.assert_close(lse[:, first:], expected_lse(near, WINDOW)[:, first - TOKENS :])


def test_heads_that_are_far_apart():
    """(H, T, D) in memory, as some attentions keep it: the stride of heads is that of whole rows."""
    near = case_of(packed_layout([[20, 30, 20, 30]], delta=1), heads=3, kv_heads=3, dtype=torch.bfloat16)
    apart = 2**30 + 2**14  # the third head begins beyond element 2**31
    table = torch.empty(2**31 + 2 * apart + 2**14, dtype=torch.bfloat16, device=DEVICE)
    query, key = (
        table.as_strided((100, 3, 16), (16, apart, 1), 2**31 + column).copy_(part)
        for column, part in ((0, near.query), (8192, near.key))
    )
    layout, plan = near.layout.to(DEVICE), plan_of(near.layout)
    lse = triton_lse(query, key, plan.queries, near.scale)
    sums = triton_column_sums(query, key, lse, layout, plan.keys, near.scale).cpu()
    expected = chunked_column_sums(near.query, near.key, near.layout, near.scale)
    torch.testing.assert_close(sums, expected, rtol=2e-4, atol=1e-6)
