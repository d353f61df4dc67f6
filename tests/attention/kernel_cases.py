"""What the tests of the Triton kernels share: the kernels' results and what they are held against."""

from __future__ import annotations

import torch
from attention_cases import Case

from marsrl_verl.attention.blocks import VisitPlan, plan_visits
from marsrl_verl.attention.chunked import chunked_column_sums
from marsrl_verl.attention.column_sums import ColumnSums
from marsrl_verl.attention.kernel import KEY_BLOCK
from marsrl_verl.attention.layout import StepLayout
from marsrl_verl.attention.lse_kernel import LSE_QUERY_BLOCK, triton_lse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 1e-7} if DEVICE == "cpu" else {"rtol": 2e-4, "atol": 1e-6},
    torch.bfloat16: {"rtol": 2e-4, "atol": 1e-6},
    torch.float16: {"rtol": 2e-4, "atol": 1e-6},
}


def sums_of(case: Case, window: int | None = None) -> torch.Tensor:
    """(H, N) column sums from both kernels."""
    layout = case.layout.to(DEVICE)
    query, key = case.query.to(DEVICE), case.key.to(DEVICE)
    return ColumnSums(layout, "triton")(query, key, case.scale, window=window).cpu()


def agrees(case: Case, window: int | None = None) -> None:
    """The kernels' sums are the chunked ones, zeros included."""
    expected = chunked_column_sums(case.query, case.key, case.layout, case.scale, window=window)
    assert expected.any()
    torch.testing.assert_close(sums_of(case, window), expected, **TOLERANCE[case.query.dtype])


def plan_of(layout: StepLayout) -> VisitPlan:
    """What the kernels visit with their own blocks, on the device."""
    return plan_visits(layout.to(DEVICE), key_block=KEY_BLOCK, query_block=LSE_QUERY_BLOCK)


def lse_agrees(case: Case, window: int | None = None) -> None:
    """The log-sum-exp of every query that counts is that of its row of scores; other queries have 0."""
    blocks = plan_of(case.layout).queries
    lse = triton_lse(case.query.to(DEVICE), case.key.to(DEVICE), blocks, case.scale, window=window).cpu()
    planned = torch.zeros(case.layout.total, dtype=torch.bool)
    for low, high in zip(blocks.query_start.tolist(), blocks.query_end.tolist(), strict=True):
        planned[low:high] = True
    assert planned.any()
    expected = expected_lse(case, window).where(planned, 0.0)
    torch.testing.assert_close(lse, expected, rtol=1e-5, atol=1e-5)


def expected_lse(case: Case, window: int | None = None) -> torch.Tensor:
    """(H, N) float32, sequence by sequence; 0 between sequences."""
    group = case.query.shape[1] // case.key.shape[1]
    result = torch.zeros(case.query.shape[1], case.layout.total)
    for start, end in zip(case.layout.starts, case.layout.ends, strict=True):
        keys = case.key[start:end].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", case.query[start:end].float(), keys) * case.scale
        place = torch.arange(end - start)
        distance = place[:, None] - place
        hidden = (distance < 0) | (distance >= (window or end - start))
        result[:, start:end] = scores.masked_fill(hidden, float("-inf")).logsumexp(-1)
    return result
