"""Log-probabilities and entropies of a prefix tree's nodes from a model's logits, in little memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

CHUNK = 1024
"""Places whose full distributions are held in float32 at a time."""


class NodeValues(torch.autograd.Function):
    """Log-probability of every node's token, and the entropy of what follows every place.

    A place may be followed by several nodes, and each token's log-probability is taken from the same
    distribution. With V in the hundred thousands the logits are the largest tensor there is: forward keeps
    them and a number per place, backward makes their gradient once, chunk by chunk in float32.

        d log p(y) / dx_j = [j = y] - p_j           d H / dx_j = -p_j (log p_j + H)
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, logits: torch.Tensor, before: torch.Tensor, tokens: torch.Tensor, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) log-probabilities and (M,) entropies in nats (zeros where not wanted), float32 or double, from
        the logits (M, V) of M places; `before` (N,) is the place whose distribution each of the nodes'
        `tokens` (N,) is taken from."""
        parts = [_statistics(chunk, entropy) for chunk in logits.split(CHUNK)]
        normalisers = torch.cat([part[0] for part in parts])
        entropies = torch.cat([part[1] for part in parts])
        ctx.save_for_backward(logits, before, tokens, normalisers, entropies)
        ctx.entropy = entropy
        return at_least_float32(logits[before, tokens]) - normalisers[before], entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: torch.Tensor, of_entropies: torch.Tensor) -> Any:  # type: ignore[override]
        """The gradient of the logits."""
        logits, before, tokens, normalisers, entropies = ctx.saved_tensors
        order = torch.argsort(before, stable=True)
        before, tokens, weights = before[order], tokens[order], of_log_probs[order]
        starts = torch.arange(0, len(logits), CHUNK, device=logits.device)
        firsts = [*torch.searchsorted(before, starts).tolist(), len(before)]
        gradient = torch.empty_like(logits)
        for number, start in enumerate(range(0, len(logits), CHUNK)):
            here = slice(firsts[number], firsts[number + 1])
            place, chunk = before[here] - start, slice(start, start + CHUNK)
            logs = at_least_float32(logits[chunk]) - normalisers[chunk, None]
            probabilities = logs.exp()
            total = torch.zeros_like(normalisers[chunk]).index_add_(0, place, weights[here])
            found = -total[:, None] * probabilities
            if ctx.entropy:
                found -= of_entropies[chunk, None] * probabilities * (logs + entropies[chunk, None])
            found.index_put_((place, tokens[here]), weights[here], accumulate=True)
            gradient[chunk] = found
        return gradient, None, None, None


def _statistics(logits: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor]:
    exact = at_least_float32(logits)
    normaliser = torch.logsumexp(exact, dim=-1)
    if not entropy:
        return normaliser, torch.zeros_like(normaliser)
    mean = ((exact - normaliser[:, None]).exp() * exact).sum(dim=-1)
    return normaliser, normaliser - mean


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """The values in float32; float64 stays."""
    return values if values.dtype is torch.float64 else values.float()
