"""Advantages of a step as they are trained, with their figures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.credit import Credit
from marsrl_verl.core.rows import ADVANTAGES, ENTROPIES, RESPONSE_MASK, Rows
from marsrl_verl.evaluation.training_metrics import advantage_metrics


def entropy_metrics(rows: Rows) -> dict[str, float]:
    """Mean entropy of the trained tokens, nats: over all, by role and by stage."""
    return _token_means(rows, "entropy", rows.columns[ENTROPIES])


def set_advantages(rows: Rows, credit: Credit) -> dict[str, float]:
    """Sets the column `advantages` as it is trained: 0 where `response_mask` is 0 and where the method leaves
    a token out; `response_mask`, the loss's normaliser, stays. The rows have `old_log_probs` and `entropies`.

    Returns:
        Figures of the advantages before tokens are left out; the shares of trained tokens that the method
        counts (`Credit.token_shares`) and, where it leaves any out, masks: over all, by role and by stage.

    Raises:
        ValueError: the method's columns have another shape, or an advantage is no finite number.
    """
    advantages = credit.advantages(rows)
    _check_column(credit, "advantages", rows, advantages)
    loss_mask = rows.columns[RESPONSE_MASK].astype(bool)
    if not np.isfinite(advantages[loss_mask]).all():
        row = int(rows.row_of_token()[loss_mask & ~np.isfinite(advantages)][0])
        raise ValueError(
            f"{type(credit).__name__}.advantages: trajectory {rows.trajectory(row).trajectory_id} has an "
            "advantage that is not a finite number"
        )
    metrics = advantage_metrics(rows, advantages)
    for name, counted in credit.token_shares(rows, advantages).items():
        _check_column(credit, "token_shares", rows, counted)
        metrics |= _token_means(rows, name, counted)
    masked = credit.masks(rows, advantages)
    if masked is not None:
        _check_column(credit, "masks", rows, masked)
        metrics |= _token_means(rows, "masked_token_frac", masked)
        loss_mask = loss_mask & ~masked
    rows.columns[ADVANTAGES] = np.where(loss_mask, advantages, 0.0).astype(np.float32)
    return metrics


def _check_column(credit: Credit, name: str, rows: Rows, values: NDArray[Any]) -> None:
    if np.shape(values) != (rows.tokens,):
        raise ValueError(
            f"{type(credit).__name__}.{name} gave shape {np.shape(values)}, expected a value for each of the "
            f"{rows.tokens} response tokens of {len(rows)} rows"
        )


def _token_means(rows: Rows, name: str, values: NDArray[Any]) -> dict[str, float]:
    """The mean of a figure (N,) over the trained tokens: of all, of each role and of each stage that has
    one."""
    mask = rows.columns[RESPONSE_MASK].astype(bool)
    sums, counts = rows.row_sums(np.where(mask, values, 0.0)), rows.trained_tokens()
    members: dict[str, list[int]] = {}
    for row in range(len(rows)):
        role, stage = rows.sequence(row).role, rows.group(row).request.stage
        for label in ("actor", f"role/{role}", f"stage/{stage}"):
            members.setdefault(label, []).append(row)
    return {
        f"{label}/{name}": float(sums[chosen].sum() / counts[chosen].sum())
        for label, chosen in sorted(members.items())
        if counts[chosen].sum() > 0
    }
