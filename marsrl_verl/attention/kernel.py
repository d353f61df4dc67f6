"""FCI's column sums as a Triton kernel: one program owns a block of keys of one head.

Given the log-sum-exp of every query's scores, a column sum needs no second pass and no other program:
queries are walked from the first one that counts, in steps of a block, and every attention weight is used
where it stands. Accumulation is in float32, there are no atomics, and the memory is that of the result,
(H, N). The work is the part of QK^T below the diagonal, once.

There is no causal mask: steps never fall inside a sequence, a block of keys ends with its sequence, and a
query that counts is at least one step later than the key, so that it stands behind it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from marsrl_verl.attention.blocks import KeyBlocks, check_token_axis
from marsrl_verl.attention.layout import NEVER, StepLayout

KEY_BLOCK = 128
LOG2_E = 1.4426950408889634
_NEVER = tl.constexpr(NEVER)


@triton.jit
def _add_queries(
    sums,
    keys,
    key_at,
    key_steps,
    query_ptr,
    offset_ptr,
    query_steps_ptr,
    stride_qn,
    low,
    high,
    scale_log2,
    delta,
    window,
    HEAD: tl.constexpr,
    QUERIES: tl.constexpr,
    WINDOWED: tl.constexpr,
    MASKED: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`sums` and what queries `low` to `high` add. Without a mask all of them count for all keys, and they
    are whole blocks."""
    size = tl.arange(0, HEAD)
    place = tl.arange(0, QUERIES)
    far_place = place.to(tl.int64)
    for at in range(low, high, QUERIES):
        # Read as (HEAD, QUERIES), so that the product needs no transposition.
        query_ptrs = query_ptr + (at + far_place)[None, :] * stride_qn + size[:, None]
        offset_ptrs = offset_ptr + (at + far_place)
        if MASKED:
            real = at + place < high
            queries = tl.load(query_ptrs, mask=real[None, :], other=0.0)
            offsets = tl.load(offset_ptrs, mask=real, other=0.0)
            query_steps = tl.load(query_steps_ptr + (at + far_place), mask=real, other=-_NEVER)
        else:
            queries = tl.load(query_ptrs)
            offsets = tl.load(offset_ptrs)
        if UPCAST:
            queries = queries.to(tl.float32)
        scores = tl.dot(keys, queries, input_precision=PRECISION)
        terms = tl.exp2(scores * scale_log2 + offsets[None, :])
        if MASKED:
            counted = query_steps[None, :] - key_steps[:, None] >= delta
            if WINDOWED:
                counted = counted & ((at + place)[None, :] - key_at[:, None] < window)
            terms = tl.where(counted, terms, 0.0)
        sums += tl.sum(terms, axis=1)
    return sums


@triton.jit
def _column_sum_kernel(
    query_ptr,
    key_ptr,
    offset_ptr,
    query_steps_ptr,
    key_steps_ptr,
    sums_ptr,
    key_start_ptr,
    key_end_ptr,
    query_start_ptr,
    full_start_ptr,
    query_end_ptr,
    stride_qn,
    stride_qh,
    stride_kn,
    stride_kh,
    stride_oh,
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
    PRECISION: tl.constexpr,
):
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    key_low = tl.load(key_start_ptr + block)
    key_high = tl.load(key_end_ptr + block)
    query_low = tl.load(query_start_ptr + block)
    query_high = tl.load(query_end_ptr + block)
    full_low = tl.load(full_start_ptr + block)
    full_high = query_high
    if WINDOWED:
        # The last key is seen up to `query_high`, and up to `full_high` the first one is seen too.
        query_high = tl.minimum(query_high, key_high - 1 + window)
        full_high = tl.maximum(tl.minimum(query_high, key_low + window), query_low)
    # Between `full_low` and `full_high` every pair counts. The whole blocks that fit there, laid against its
    # end, need no mask, which is most of the work.
    main_low = full_high - tl.maximum(full_high - full_low, 0) // QUERIES * QUERIES

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
    key_steps = tl.load(key_steps_ptr + key_at, mask=key_real, other=_NEVER)
    query_ptr += head * stride_qh
    offset_ptr += head * stride_oh
    sums = tl.zeros([KEYS], dtype=tl.float32)
    sums = _add_queries(
        sums, keys, key_at, key_steps, query_ptr, offset_ptr, query_steps_ptr, stride_qn, query_low, main_low,
        scale_log2, delta, window, HEAD, QUERIES, WINDOWED, True, UPCAST, PRECISION
    )  # fmt: skip
    sums = _add_queries(
        sums, keys, key_at, key_steps, query_ptr, offset_ptr, query_steps_ptr, stride_qn, main_low, full_high,
        scale_log2, delta, window, HEAD, QUERIES, WINDOWED, False, UPCAST, PRECISION
    )  # fmt: skip
    if WINDOWED:
        sums = _add_queries(
            sums, keys, key_at, key_steps, query_ptr, offset_ptr, query_steps_ptr, stride_qn, full_high,
            query_high, scale_log2, delta, window, HEAD, QUERIES, WINDOWED, True, UPCAST, PRECISION
        )  # fmt: skip
    # Keys that are not measured were summed too where there was no mask.
    tl.store(sums_ptr + head * stride_sh + key_at, sums, mask=key_steps < _NEVER)


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
    """(H, N) float32: the weighted sums c_t of `StepLayout`; 0 for tokens that are not measured.

    Args:
        query, key: as of `column_sums.ColumnSums`, bf16, fp16 or fp32; the last axis contiguous.
        lse: (H, N) float32: the natural log-sum-exp of every query's scores, needed from the first query that
            counts.
        layout: sequences and steps.
        blocks: what to visit, from `plan_visits(layout, key_block=KEY_BLOCK, …)`.
        scale, window: as of `column_sums.ColumnSums`.
    """
    check_token_axis(query, key, layout)
    check_last_axis(query, key)
    total, heads, size = query.shape
    sums = torch.zeros(heads, total, dtype=torch.float32, device=query.device)
    count = blocks.key_start.numel()
    if not count:
        return sums
    # w_q * exp(score - lse_q) as one power of two: a query needs a single number in the kernel.
    offsets = torch.sub(layout.weights.log2(), lse, alpha=LOG2_E).contiguous()
    _column_sum_kernel[(count, heads)](
        query,
        key,
        offsets,
        layout.query_steps,
        layout.key_steps,
        sums,
        *blocks,
        *query.stride()[:2],
        *key.stride()[:2],
        offsets.stride(0),
        sums.stride(0),
        scale * LOG2_E,
        layout.delta,
        window or 0,
        GROUP=heads // key.shape[1],
        HEAD=size,
        KEYS=KEY_BLOCK,
        QUERIES=walked_block(query.dtype),
        WINDOWED=window is not None,
        **launch_options(query.dtype, size, interpreted=not query.is_cuda),
    )
    return sums


def walked_block(dtype: torch.dtype) -> int:
    """Tokens that a program reads at a time: fewer of float32, which takes more memory and registers."""
    return 32 if dtype == torch.float32 else 64


def launch_options(dtype: torch.dtype, size: int, *, interpreted: bool) -> dict[str, Any]:
    """Returns the options that a kernel is compiled with for queries and keys of a number type and head size.

    By default float32 would be rounded to TF32, which has ten bits. "ieee" leaves the tensor cores and does
    not fit into the registers; three products of TF32 ("tf32x3") are about as exact.
    """
    single = dtype == torch.float32
    return {
        # The interpreter's products take bf16 for integers.
        "UPCAST": interpreted,
        "PRECISION": "tf32x3" if single else "ieee",
        "num_warps": 8 if size > 64 else 4,
        "num_stages": 2 if single else 3,
        # The default so far; Triton 3.10 is to round between a product and a sum unless told so.
        "enable_fp_fusion": True,
    }


def check_last_axis(query: torch.Tensor, key: torch.Tensor) -> None:
    """Raises ValueError unless the kernels can read the queries' and keys' last axis."""
    size = query.shape[2]
    if size not in (16, 32, 64, 128, 256):
        raise ValueError(f"head size {size} has no kernel, expected 16, 32, 64, 128 or 256")
    if query.dtype != key.dtype or query.stride(2) != 1 or key.stride(2) != 1:
        raise ValueError(
            f"queries ({query.dtype}, stride {query.stride()}) and keys ({key.dtype}, stride {key.stride()}) "
            "must have one type and a contiguous last axis"
        )
