"""FCI's column sums in plain torch, a few queries at a time: memory O(H x chunk x T), any device."""

from __future__ import annotations

import torch

from marsrl_verl.attention.layout import StepLayout


def chunked_column_sums(
    query: torch.Tensor,
    key: torch.Tensor,
    layout: StepLayout,
    scale: float,
    *,
    window: int | None = None,
    chunk: int = 256,
) -> torch.Tensor:
    """(H, N) the weighted sums c_t of `StepLayout`, computed in float32 (float64 stays), `chunk` queries at a
    time; 0 for tokens that are not measured. Other arguments as of `column_sums.ColumnSums`."""
    total, heads, size = query.shape
    kv_heads = key.shape[1]
    kind = torch.promote_types(query.dtype, torch.float32)
    sums = torch.zeros(heads, total, dtype=kind, device=query.device)
    for start, end in zip(layout.starts, layout.ends, strict=True):
        needed = _needed(layout, start, end)
        if needed is None:
            continue
        first, last_key = needed
        keys = key[start:end].to(kind).permute(1, 2, 0)  # (H_kv, D, T)
        for low in range(first, end, chunk):
            high = min(low + chunk, end)
            rows = query[low:high].to(kind).reshape(high - low, kv_heads, -1, size)
            rows = rows.permute(1, 2, 0, 3).reshape(kv_heads, -1, size)  # (H_kv, group * C, D)
            scores = torch.bmm(rows, keys[:, :, : high - start]).mul_(scale)
            scores = scores.view(heads, high - low, high - start)
            scores.masked_fill_(_hidden(low, high, start, window, query.device), float("-inf"))
            normaliser = scores.logsumexp(-1, keepdim=True)
            seen = min(last_key, high)
            part = scores[:, :, : seen - start].sub_(normaliser).exp_()
            counted = layout.query_steps[low:high, None] - layout.key_steps[None, start:seen] >= layout.delta
            weights = counted * layout.weights[low:high, None].to(kind)
            sums[:, start:seen] += torch.einsum("hqk,qk->hk", part, weights)
    return sums


def _needed(layout: StepLayout, start: int, end: int) -> tuple[int, int] | None:
    """The first query of a sequence that counts for a measured key, and one past the last measured key."""
    steps, keys = layout.query_steps[start:end], layout.key_steps[start:end]
    measured = torch.nonzero(keys + layout.delta <= steps[-1]).flatten()
    if not len(measured):
        return None
    queries = torch.nonzero(steps >= keys[measured[0]] + layout.delta).flatten()
    return start + int(queries[0]), start + int(measured[-1]) + 1


def _hidden(low: int, high: int, start: int, window: int | None, device: torch.device) -> torch.Tensor:
    """(C, T) bool: keys from `start` on that queries `low` to `high` do not see."""
    distance = torch.arange(low, high, device=device)[:, None] - torch.arange(start, high, device=device)
    hidden = distance < 0
    return hidden if window is None else hidden | (distance >= window)
