"""FCI straight from its definition, with the whole attention matrix: for tests and small inputs only."""

from __future__ import annotations

import torch

from marsrl_verl.attention.layout import NEVER, StepLayout


def attention_matrix(
    query: torch.Tensor, key: torch.Tensor, scale: float, window: int | None = None
) -> torch.Tensor:
    """Causal softmax attention of one sequence, (H, T, T).

    Args:
        query: (T, H, D).
        key: (T, H_kv, D), H a multiple of H_kv.
        scale: factor of the scores.
        window: a query sees itself and the `window - 1` tokens before it; None: all.
    """
    length, heads = query.shape[:2]
    key = key.repeat_interleave(heads // key.shape[1], dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale
    position = torch.arange(length, device=query.device)
    distance = position[:, None] - position[None, :]
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    return scores.masked_fill(hidden, float("-inf")).softmax(-1)


def influence_by_definition(
    query: torch.Tensor, key: torch.Tensor, layout: StepLayout, scale: float, window: int | None = None
) -> torch.Tensor:
    """FCI by head and step as the paper writes it (arXiv 2509.26628, eq. 5): the mean attention of every
    pair of steps, then the sum over the later ones.

    Returns:
        (H, S) for the S steps of all sequences; 0 where a step is not measured.
    """
    heads, steps = query.shape[1], len(layout.step_lengths)
    result = torch.zeros(heads, steps, dtype=query.dtype, device=query.device)
    for start, end in zip(layout.starts, layout.ends, strict=True):
        matrix = attention_matrix(query[start:end], key[start:end], scale, window)
        number = layout.step_of_token[start:end]
        for k in torch.unique(number).tolist():
            mine = number == k
            if layout.key_steps[start:end][mine][0] == NEVER:
                continue
            own_step = int(layout.query_steps[start:end][mine][0])
            for j in torch.unique(number).tolist():
                theirs = number == j
                if int(layout.query_steps[start:end][theirs][0]) - own_step >= layout.delta:
                    result[:, k] += matrix[:, theirs][:, :, mine].mean(dim=(1, 2))
    return result
