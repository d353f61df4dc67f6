"""What the advantages of a training step look like, before any token is masked."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.rows import RESPONSE_MASK, Rows


def advantage_metrics(rows: Rows, advantages: NDArray[np.float32]) -> dict[str, float]:
    """Mean and extremes of the advantages over the tokens that the policy chose, and how much of the batch
    has one other than 0.

    Advantages of single tokens can vanish, as in a tree on a segment whose continuations do as well as all
    leaves do. A sequence counts where any of its tokens does. Empty without tokens.

    Args:
        rows: of the step.
        advantages: (N,)
    """
    chosen = rows.columns[RESPONSE_MASK].astype(bool)
    values = advantages[chosen].astype(np.float64)
    if not len(values):
        return {}
    moving = (advantages != 0) & chosen
    return {
        "batch/advantage_mean": float(values.mean()),
        "batch/advantage_min": float(values.min()),
        "batch/advantage_max": float(values.max()),
        "batch/samples_with_advantage_share": float((rows.row_sums(moving) > 0.5).mean()),
        "batch/tokens_with_advantage_share": float((values != 0).mean()),
    }
