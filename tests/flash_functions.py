"""Functions in plain torch with flash-attention's arguments and results, log-sum-exp included.

flash-attention runs on NVIDIA GPUs only; transformers calls these in its place (`_flash_attention_forward`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import modeling_flash_attention_utils as flash_utils


def attend(q, k, v, scale, window):
    """(T, H, D) and the log-sum-exp (H, T) of one sequence; grouped keys, causal."""
    with torch.autocast(q.device.type, enabled=False):  # the GPU's kernel adds up in float32
        return attend_in_float32(q, k, v, scale, window)


def attend_in_float32(q, k, v, scale, window):
    k, v = (one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    position = torch.arange(len(q), device=q.device)
    distance = position[:, None] - position[None]
    seen = distance >= 0 if window < 0 else (distance >= 0) & (distance <= window)
    scores = scores.masked_fill(~seen, float("-inf"))
    output = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.float())
    return output.to(q.dtype), scores.logsumexp(-1)


def flash_attn_func(
    q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), return_attn_probs=False
):
    assert causal and dropout_p == 0.0
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    rows = [attend(*row, scale, window_size[0]) for row in zip(q, k, v, strict=True)]
    output, lse = (torch.stack(part) for part in zip(*rows, strict=True))
    return (output, lse, None) if return_attn_probs else output


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    return_attn_probs=False,
):
    assert causal and dropout_p == 0.0
    lengths = cu_seqlens_q.diff().tolist()
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    rows = [
        attend(*row, scale, window_size[0])
        for row in zip(*(one.split(lengths) for one in (q, k, v)), strict=True)
    ]
    output, lse = torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows], dim=1)
    return (output, lse, None) if return_attn_probs else output


def give_transformers(
    dense: Callable[..., Any], packed: Callable[..., Any], put: Callable[[Any, str, Any], None] = setattr
) -> None:
    """Lets transformers take these for flash-attention's.

    Args:
        put: sets the attribute of a module.
    """
    functions = (dense, packed, None, flash_utils._pad_input, flash_utils._unpad_input)
    process = flash_utils._lazy_define_process_function(packed)
    put(flash_utils, "lazy_import_flash_attention", lambda *_, **__: (functions, process))


def written_out_flex_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: Any = None, **_: Any
) -> Any:
    """What flex attention computes: on a processor it has no backward pass."""
    groups, place = query.shape[1] // key.shape[1], torch.arange(query.shape[2])
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    sees = attention_mask.mask_mod(torch.tensor(0), torch.tensor(0), place[:, None], place[None, :])
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=scaling)
    return out.transpose(1, 2).contiguous(), None
