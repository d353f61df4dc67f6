"""The log-sum-exp of causal attention scores as a Triton kernel, for attentions that do not return theirs.

flash-attention gives its own (`flash_lse.py`). torch's scaled-dot-product attention keeps it to itself, so
that it is computed again: the causal half of QK^T once more, without values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from marsrl_verl.attention.blocks import QueryBlocks
from marsrl_verl.attention.kernel import LOG2_E, check_last_axis, launch_options, walked_block

LSE_QUERY_BLOCK = 128


@triton.jit
def _take_in_keys(
    highest,
    total,
    queries,
    query_at,
    key_ptr,
    stride_kn,
    low,
    high,
    scale_log2,
    window,
    HEAD: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The largest score (times log2 e) and the sum of powers of two relative to it, with keys `low` to `high`
    taken in. Without a mask all of them are seen by all queries, and they are whole blocks."""
    size = tl.arange(0, HEAD)
    place = tl.arange(0, KEYS)
    far_place = place.to(tl.int64)
    for at in range(low, high, KEYS):
        # Read as (HEAD, KEYS), so that the product needs no transposition.
        key_ptrs = key_ptr + (at + far_place)[None, :] * stride_kn + size[:, None]
        key_at = at + place
        keys = tl.load(key_ptrs, mask=(key_at < high)[None, :], other=0.0) if MASKED else tl.load(key_ptrs)
        if UPCAST:
            keys = keys.to(tl.float32)
        scores = tl.dot(queries, keys, input_precision=PRECISION)
        if MASKED:
            seen = (key_at < high)[None, :] & (key_at[None, :] <= query_at[:, None])
            if WINDOWED:
                seen = seen & (query_at[:, None] - key_at[None, :] < window)
            scores = tl.where(seen, scores, -1.0e30)
        raised = tl.maximum(highest, tl.max(scores, axis=1) * scale_log2)
        terms = tl.exp2(scores * scale_log2 - raised[:, None])
        if MASKED:
            # A row that sees nothing of this block keeps its sum: the masked terms are taken out by hand.
            terms = tl.where(seen, terms, 0.0)
        total = total * tl.exp2(highest - raised) + tl.sum(terms, axis=1)
        highest = raised
    return highest, total


@triton.jit
def _lse_kernel(
    query_ptr,
    key_ptr,
    lse_ptr,
    query_start_ptr,
    query_end_ptr,
    key_start_ptr,
    stride_qn,
    stride_qh,
    stride_kn,
    stride_kh,
    stride_lh,
    scale_log2,
    window,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # The last queries see most keys: they begin first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    query_low = tl.load(query_start_ptr + block)
    query_high = tl.load(query_end_ptr + block)
    key_low = tl.load(key_start_ptr + block)
    full_low = key_low
    if WINDOWED:
        # The first query sees keys from `key_low` on; from `full_low` on the last one sees them too.
        key_low = tl.maximum(key_low, query_low - window + 1)
        full_low = tl.maximum(key_low, query_high - window)
    # From `full_low` up to the first query's own key every pair is seen: whole blocks there need no mask.
    main_high = full_low + tl.maximum(query_low + 1 - full_low, 0) // KEYS * KEYS

    size = tl.arange(0, HEAD)
    query_at = query_low + tl.arange(0, QUERIES)
    query_real = query_at < query_high
    rows = query_at.to(tl.int64)
    queries = tl.load(
        query_ptr + rows[:, None] * stride_qn + head * stride_qh + size[None, :],
        mask=query_real[:, None],
        other=0.0,
    )
    if UPCAST:
        queries = queries.to(tl.float32)
    key_ptr += (head // GROUP) * stride_kh
    highest = tl.full([QUERIES], -1.0e30, dtype=tl.float32)
    total = tl.zeros([QUERIES], dtype=tl.float32)
    if WINDOWED:
        highest, total = _take_in_keys(
            highest, total, queries, query_at, key_ptr, stride_kn, key_low, full_low,
            scale_log2, window, HEAD, KEYS, WINDOWED, True, UPCAST, PRECISION
        )  # fmt: skip
    highest, total = _take_in_keys(
        highest, total, queries, query_at, key_ptr, stride_kn, full_low, main_high,
        scale_log2, window, HEAD, KEYS, WINDOWED, False, UPCAST, PRECISION
    )  # fmt: skip
    highest, total = _take_in_keys(
        highest, total, queries, query_at, key_ptr, stride_kn, main_high, query_high,
        scale_log2, window, HEAD, KEYS, WINDOWED, True, UPCAST, PRECISION
    )  # fmt: skip
    # Rows behind the last query may have seen nothing.
    total = tl.where(query_real, total, 1.0)
    lse = (highest + tl.log2(total)) * 0.6931471805599453
    tl.store(lse_ptr + head * stride_lh + query_at, lse, mask=query_real)


def triton_lse(
    query: torch.Tensor, key: torch.Tensor, blocks: QueryBlocks, scale: float, *, window: int | None = None
) -> torch.Tensor:
    """(H, N) float32: the natural log-sum-exp of the scores of the queries in `blocks`, which come from
    `plan_visits(…, query_block=LSE_QUERY_BLOCK)`, 0 for others. Arguments as of `triton_column_sums`."""
    check_last_axis(query, key)
    total, heads, size = query.shape
    lse = torch.zeros(heads, total, dtype=torch.float32, device=query.device)
    count = blocks.query_start.numel()
    if not count:
        return lse
    _lse_kernel[(count, heads)](
        query,
        key,
        lse,
        *blocks,
        *query.stride()[:2],
        *key.stride()[:2],
        lse.stride(0),
        scale * LOG2_E,
        window or 0,
        GROUP=heads // key.shape[1],
        HEAD=size,
        QUERIES=LSE_QUERY_BLOCK,
        KEYS=walked_block(query.dtype),
        WINDOWED=window is not None,
        **launch_options(query.dtype, size, interpreted=not query.is_cuda),
    )
    return lse
