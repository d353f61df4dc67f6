"""Dynamic masking of well-mastered positive tokens (UloRL, arXiv 2507.19766, §3.2, Eq. 9 and 10).

A token of a correct response that the model samples almost surely has nothing to teach; training it
further takes entropy away. It is left out of the loss while entropy is below a target, and the loss is
still divided by all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marsrl_verl.settings.choices import EntropyScope


def mastered_positive_tokens(
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    probability: float = 0.99,
) -> torch.Tensor:
    """Which tokens are well mastered and positive, shape (B, T), boolean.

    Args:
        log_probs: of the sampled tokens under the weights about to be updated, (B, T).
        advantages: (B, T); only tokens with a positive one count.
        response_mask: 1 where the model sampled the token, (B, T).
        probability: a token is mastered from this probability on (τ in the paper).
    """
    return response_mask.bool() & (advantages > 0) & (log_probs.exp() >= probability)


def tokens_to_mask(
    mastered: torch.Tensor,
    entropies: torch.Tensor,
    response_mask: torch.Tensor,
    roles: Sequence[str],
    *,
    target_entropy: float = 0.2,
    scope: EntropyScope | str = EntropyScope.SEQUENCE,
) -> torch.Tensor:
    """Which of the mastered tokens to leave out of the loss, shape (B, T), boolean.

    Args:
        mastered: of `mastered_positive_tokens`, (B, T).
        entropies: of the full distribution at every token, nats, (B, T), from the same forward pass.
        response_mask: 1 where the model sampled the token, (B, T).
        roles: the role of each of the B samples.
        target_entropy: tokens are left out only while entropy is below it, nats (σ in the paper).
        scope: whose entropy that is.
    """
    mean_entropy = _mean_entropy(entropies, response_mask.bool(), roles, EntropyScope(scope))
    return mastered & (mean_entropy < target_entropy)[:, None]


def _mean_entropy(
    entropies: torch.Tensor, mask: torch.Tensor, roles: Sequence[str], scope: EntropyScope
) -> torch.Tensor:
    """The mean entropy that applies to each sample, shape (B,)."""
    sums, counts = (entropies * mask).sum(dim=1), mask.sum(dim=1)
    if scope is EntropyScope.SEQUENCE:
        return sums / counts.clamp(min=1)
    labels = [""] * len(roles) if scope is EntropyScope.BATCH else list(roles)
    means = torch.zeros_like(sums)
    for label in set(labels):
        rows = torch.tensor([one == label for one in labels], device=sums.device)
        means[rows] = sums[rows].sum() / counts[rows].sum().clamp(min=1)
    return means
