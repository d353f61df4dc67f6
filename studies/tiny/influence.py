"""The influence of a response's steps by a model at hand, without a run."""

from __future__ import annotations

from typing import Any

import torch

from marsrl_verl.attention.collector import collect_influence
from marsrl_verl.attention.layout import build_layout
from marsrl_verl.core.reasoning_steps import Steps

_LOGITS_AT_ONCE = 1024
"""Tokens."""


def measure_response(
    model: Any, prompt_ids: list[int], response_ids: list[int], steps: Steps, delta: int, backend: str
) -> tuple[list[float], list[float], list[float]]:
    """FCI of each step, and of each token its log-probability and the entropy of what it was drawn from, from
    one forward pass.

    Args:
        model: a transformers model whose attention comes from the registry.
        prompt_ids: what the response answers; at least one token.
        response_ids: at least one token.
        steps: the response's steps.
        delta: least distance in steps from which attention counts.
        backend: see `FciBackend`.
    """
    ids = torch.tensor([prompt_ids + response_ids], device=model.device)
    step_ids = torch.tensor([0] * len(prompt_ids) + [step + 1 for step in steps.step_ids()])
    measured = (step_ids > 1) & (step_ids <= steps.thinking)
    layout = build_layout(step_ids, measured, delta=delta).to(model.device)
    with torch.no_grad(), collect_influence(model, layout, backend) as collector:
        logits = model(ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
    chosen = torch.tensor(response_ids, device=logits.device)[:, None]
    # In pieces: in float32 a large vocabulary takes more memory than the model.
    pieces = zip(logits.split(_LOGITS_AT_ONCE), chosen.split(_LOGITS_AT_ONCE), strict=True)
    log_probs, entropies = [], []
    for rows, drawn in pieces:
        every = rows.float().log_softmax(-1)
        log_probs += every.gather(1, drawn)[:, 0].tolist()
        entropies += (-(every.exp() * every).sum(-1)).tolist()
    return collector.by_step()[1:].tolist(), log_probs, entropies  # the prompt is step 0
