"""What the advantages of a training step look like, before any token is masked."""

from __future__ import annotations

import numpy as np

from marsrl_verl.core.algorithm import Credit


def credit_metrics(credit: Credit) -> dict[str, float]:
    """Mean and extremes of the advantages over the tokens, and how much of the batch has one other than 0.

    Advantages of single tokens can vanish, as in a tree on a segment whose continuations do as well as all
    leaves do. A sample counts where any of its tokens does. Empty without tokens.
    """
    parts = [np.array(one, dtype=np.float64).reshape(-1, 2) for one in credit.values()]
    lengths = [np.diff(one[:, 0], prepend=0.0) for one in parts]
    tokens = sum(float(one.sum()) for one in lengths)
    if not tokens:
        return {}
    advantages = np.concatenate([one[:, 1] for one in parts])
    weights = np.concatenate(lengths)
    moving = [
        bool(((part[:, 1] != 0) & (length > 0)).any()) for part, length in zip(parts, lengths, strict=True)
    ]
    return {
        "batch/advantage_mean": float((advantages * weights).sum() / tokens),
        "batch/advantage_min": float(advantages[weights > 0].min()),
        "batch/advantage_max": float(advantages[weights > 0].max()),
        "batch/samples_with_advantage_share": sum(moving) / len(moving),
        "batch/tokens_with_advantage_share": float(weights[advantages != 0].sum() / tokens),
    }
