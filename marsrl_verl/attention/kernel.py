"""FCI's column sums as a Triton kernel: one program owns a block of keys of one head.

Given the log-sum-exp of every query's scores, a column sum needs no second pass and no other program:
queries are walked from the first one that counts, in steps of a block, and every attention weight is used
where it stands. Accumulation is in float32, there are no atomics, and the memory is that of the result,
(H, N). The work is the part of QK^T below the diagonal, once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from marsrl_verl.attention.blocks import KeyBlocks, check_token_axis
from marsrl_verl.attention.layout import StepLayout

KEY_BLOCK = 128
QUERY_BLOCK = 64
LOG2_E = 1.4426950408889634


@triton.jit
def _column_sum_kernel(
    query_ptr,
    key_ptr,
    lse_ptr,
    query_steps_ptr,
    key_steps_ptr,
    weights_ptr,
    sums_ptr,
    key_start_ptr,
    key_end_ptr,
    query_start_ptr,
    query_end_ptr,
    stride_qn,
    stride_qh,
    stride_kn,
    stride_kh,
    stride_lh,
    stride_sh,
    scale_log2,
    delta,
    window,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    KEYS: tl.constexpr,
    QUERIES: tl.constexpr,
    WINDOWED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    key_low = tl.load(key_start_ptr + block)
    key_high = tl.load(key_end_ptr + block)
    query_low = tl.load(query_start_ptr + block)
    query_high = tl.load(query_end_ptr + block)
    size = tl.arange(0, HEAD)
    key_at = key_low + tl.arange(0, KEYS)
    key_real = key_at < key_high
    rows = key_at.to(tl.int64)
    keys = tl.load(
        key_ptr + rows[:, None] * stride_kn + (head // GROUP) * stride_kh + size[None, :],
        mask=key_real[:, None],
        other=0.0,
    )
    if UPCAST:
        keys = keys.to(tl.float32)
    key_steps = tl.load(key_steps_ptr + key_at, mask=key_real, other=1073741824)
    sums = tl.zeros([KEYS], dtype=tl.float32)
    for low in range(query_low, query_high, QUERIES):
        query_at = low + tl.arange(0, QUERIES)
        query_real = query_at < query_high
        columns = query_at.to(tl.int64)
        # Loaded as (HEAD, QUERIES), so that the product needs no transposition.
        queries = tl.load(
            query_ptr + columns[None, :] * stride_qn + head * stride_qh + size[:, None],
            mask=query_real[None, :],
            other=0.0,
        )
        lse = tl.load(lse_ptr + head * stride_lh + query_at, mask=query_real, other=0.0)
        weights = tl.load(weights_ptr + query_at, mask=query_real, other=0.0)
        query_steps = tl.load(query_steps_ptr + query_at, mask=query_real, other=-1073741824)
        if UPCAST:
            queries = queries.to(tl.float32)
        scores = tl.dot(keys, queries)
        attention = tl.exp2(scores * scale_log2 - lse[None, :] * 1.4426950408889634)
        counted = query_steps[None, :] - key_steps[:, None] >= delta
        if WINDOWED:
            counted = counted & (query_at[None, :] - key_at[:, None] < window)
        sums += tl.sum(tl.where(counted, attention * weights[None, :], 0.0), axis=1)
    tl.store(sums_ptr + head * stride_sh + key_at, sums, mask=key_real)


def triton_column_sums(
    query: torch.Tensor,
    key: torch.Tensor,
    lse: torch.Tensor,
    layout: StepLayout,
    blocks: KeyBlocks,
    scale: float,
    *,
    window: int | None = None,
) -> torch.Tensor:
    """The weighted sums c_t of `StepLayout`.

    Args:
        query: (N, H, D) bf16, fp16 or fp32, after the position embedding; the last axis contiguous.
        key: (N, H_kv, D) of the same type, H a multiple of H_kv; the last axis contiguous.
        lse: (H, N) float32: the natural log-sum-exp of every query's scores, as the attention's forward
            pass has it; needed from the first query that counts.
        layout: sequences and steps, delta included.
        blocks: what to visit, from `plan_visits(layout, key_block=KEY_BLOCK, …)`.
        scale: factor of the scores.
        window: length of a sliding window; None: every earlier token is seen.

    Returns:
        (H, N) float32; 0 for tokens that are not measured.
    """
    check_token_axis(query, key, layout)
    _check_last_axis(query, key)
    total, heads, size = query.shape
    sums = torch.zeros(heads, total, dtype=torch.float32, device=query.device)
    count = blocks.key_start.numel()
    if not count:
        return sums
    _column_sum_kernel[(count, heads)](
        query,
        key,
        lse,
        layout.query_steps,
        layout.key_steps,
        layout.weights,
        sums,
        blocks.key_start,
        blocks.key_end,
        blocks.query_start,
        blocks.query_end,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        lse.stride(0),
        sums.stride(0),
        scale * LOG2_E,
        layout.delta,
        window or 0,
        GROUP=heads // key.shape[1],
        HEAD=size,
        KEYS=KEY_BLOCK,
        QUERIES=QUERY_BLOCK,
        WINDOWED=window is not None,
        UPCAST=is_interpreted(query),
        num_warps=8 if size > 64 else 4,
        num_stages=3,
    )
    return sums


def is_interpreted(query: torch.Tensor) -> bool:
    """Whether the kernel runs in Triton's interpreter, whose products take bf16 for integers."""
    return not query.is_cuda


def _check_last_axis(query: torch.Tensor, key: torch.Tensor) -> None:
    size = query.shape[2]
    if size not in (16, 32, 64, 128, 256):
        raise ValueError(f"head size {size} has no kernel, expected 16, 32, 64, 128 or 256")
    if query.dtype != key.dtype or query.stride(2) != 1 or key.stride(2) != 1:
        raise ValueError(
            f"queries ({query.dtype}, stride {query.stride()}) and keys ({key.dtype}, stride {key.stride()}) "
            "must have one type and a contiguous last axis"
        )
