"""Blocks of queries and keys that the Triton kernels visit; computed once for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from marsrl_verl.attention.layout import NEVER, StepLayout


class KeyBlocks(NamedTuple):
    """Blocks of keys with at least one measured token and one query that counts for it; (P,) int32 each."""

    key_start: torch.Tensor
    """First key of the block."""
    key_end: torch.Tensor
    """One past its last key; a block ends with its sequence."""
    query_start: torch.Tensor
    """First query that counts for a key of the block."""
    full_start: torch.Tensor
    """First query that counts for all measured keys of the block; `query_end` where there is none."""
    query_end: torch.Tensor
    """One past the last query of the sequence."""


class QueryBlocks(NamedTuple):
    """Blocks of queries that count for some measured key; (P,) int32 each."""

    query_start: torch.Tensor
    query_end: torch.Tensor
    key_start: torch.Tensor
    """First token of the sequence: a softmax runs over all of it."""


class VisitPlan(NamedTuple):
    """Blocks that the two kernels visit for one layout."""

    keys: KeyBlocks
    queries: QueryBlocks


def plan_visits(layout: StepLayout, *, key_block: int, query_block: int) -> VisitPlan:
    """Cuts every sequence into blocks of so many keys (column sums) and queries (log-sum-exp), and leaves out
    those that add nothing."""
    all_steps, all_keys = layout.query_steps.cpu(), layout.key_steps.cpu()
    keys: list[list[int]] = []
    queries: list[tuple[int, int, int]] = []
    for start, end in zip(layout.starts, layout.ends, strict=True):
        steps, key_steps = all_steps[start:end].contiguous(), all_keys[start:end]
        padding = -(end - start) % key_block
        blocks = torch.nn.functional.pad(key_steps, (0, padding), value=NEVER).view(-1, key_block)
        least = blocks.amin(1)
        most = torch.where(blocks == NEVER, -1, blocks).amax(1)
        first = start + torch.searchsorted(steps, least + layout.delta)
        full = start + torch.searchsorted(steps, most + layout.delta)
        lows = torch.arange(start, end, key_block)
        highs = (lows + key_block).clamp(max=end)
        # Where nothing is measured, `least` is NEVER and no query comes after it.
        nonempty = first < end
        keys += torch.stack([lows, highs, first, full, torch.full_like(lows, end)], dim=1)[nonempty].tolist()
        first_of_all = int(first.min())
        queries += [
            (low, min(low + query_block, end), start) for low in range(first_of_all, end, query_block)
        ]
    device = layout.query_steps.device
    return VisitPlan(KeyBlocks(*_columns(keys, 5, device)), QueryBlocks(*_columns(queries, 3, device)))


def _columns(rows: Sequence[Sequence[int]], width: int, device: torch.device) -> list[torch.Tensor]:
    table = torch.tensor(rows, dtype=torch.int32).reshape(-1, width)
    return [table[:, column].contiguous().to(device) for column in range(width)]


def check_token_axis(query: torch.Tensor, key: torch.Tensor, layout: StepLayout) -> None:
    """Raises ValueError unless queries, keys and layout fit together."""
    if query.dim() != 3 or key.dim() != 3 or query.shape[0] != key.shape[0]:
        raise ValueError(
            f"queries have shape {tuple(query.shape)}, keys {tuple(key.shape)}; expected (N, H, D) and "
            "(N, H_kv, D)"
        )
    if query.shape[2] != key.shape[2] or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"{query.shape[1]} query heads of size {query.shape[2]} do not share {key.shape[1]} key heads of "
            f"size {key.shape[2]} evenly"
        )
    if query.shape[0] != layout.total:
        raise ValueError(f"queries have {query.shape[0]} tokens, the layout {layout.total}")
