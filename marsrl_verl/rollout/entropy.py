"""The entropy of distributions of which the likeliest tokens are known, and the mass of the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.rollout.generation import TopLogProbs

Entropies = NDArray[np.float64]


def entropy_bounds(top: TopLogProbs, vocab_size: int) -> tuple[Entropies, Entropies]:
    """Least and greatest entropy that the m likeliest tokens allow, in nats at each of T positions.

    The other tokens share the mass r = exp(tail), none of them likelier than the last of the m, p_m. The
    entropy is least where as few as possible have it (floor(r / p_m) tokens with p_m each, one with the
    rest) and greatest where all of them have the same. Both can be reached; with r = 0 or m = `vocab_size`
    they are the entropy itself.

    Args:
        top: (T, m)
        vocab_size: tokens that could have been sampled.

    Returns:
        (T,) each.

    Raises:
        ValueError: m is 0 or exceeds the vocabulary.
    """
    _, m = top.ids.shape
    if not 1 <= m <= vocab_size:
        raise ValueError(f"{m} likeliest tokens are known of a vocabulary of {vocab_size}: expected 1 to all")
    known = np.exp(top.log_probs.astype(np.float64))
    head = _surprise(known).sum(axis=1)
    others = vocab_size - m
    if others == 0:
        return head, head
    rest, largest = np.exp(top.tail()), known[:, -1]
    high = head + rest * np.log(others) + _surprise(rest)
    # Where p_m is 0 nothing is left: what rounding leaves is no token's.
    full = np.floor(np.divide(rest, largest, out=np.zeros_like(rest), where=largest > 0))
    full = np.minimum(full, others)
    low = head + full * _surprise(largest) + _surprise(np.clip(rest - full * largest, 0.0, None))
    return np.minimum(low, high), high


def entropy_from_top(top: TopLogProbs, vocab_size: int) -> Entropies:
    """(T,) the mean of `entropy_bounds`: at most half their distance from the entropy, in nats."""
    low, high = entropy_bounds(top, vocab_size)
    return (low + high) / 2


def _surprise(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """-p log p, 0 at p = 0."""
    logs = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    return -probabilities * logs
