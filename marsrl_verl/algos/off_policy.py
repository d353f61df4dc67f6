"""Age of the weights that sampled a token, and its effect on the token's probability.

A response of several segments holds tokens of several policy versions (UloRL, arXiv 2507.19766,
§3.1.2). These figures are logged in every mode of off-policy correction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.rows import OLD_LOG_PROBS, RESPONSE_MASK, TOKEN_VERSIONS, Rows

OLDEST = 3
"""Ages up to this many versions are told apart; older ones are counted together."""


def staleness_metrics(
    rows: Rows,
    behaviour_log_probs: NDArray[np.float32],
    versions: NDArray[np.int32],
    is_current: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """Returns the age of the trained tokens and their true importance ratio; empty without a token.

    Args:
        rows: with `old_log_probs` under the weights about to be updated, N tokens.
        behaviour_log_probs: (N,) under the weights that sampled the token: those that the loss compares with,
            if it compares with such ones.
        versions: (N,) the version of its policy that is about to be updated.
        is_current: (N,) true where `old_log_probs` are under those weights; other tokens have an age but no
            ratio. None: everywhere.
    """
    mask = rows.columns[RESPONSE_MASK].astype(bool)
    if not mask.any():
        return {}
    all_ages = versions - rows.columns[TOKEN_VERSIONS]
    ages = all_ages[mask]
    metrics = {
        "off_policy/staleness_mean": float(ages.mean()),
        "off_policy/staleness_max": float(ages.max()),
        **{f"off_policy/older_than/{age}": float((ages > age).mean()) for age in range(OLDEST + 1)},
    }
    known = mask if is_current is None else mask & is_current
    ages = all_ages[known]
    log_ratios = (rows.columns[OLD_LOG_PROBS][known] - behaviour_log_probs[known]).astype(np.float64)
    if log_ratios.size:
        metrics |= _ratio_metrics("off_policy", log_ratios) | _log_ratios_by_age(ages, log_ratios)
    stale = ages > 0
    if stale.any():
        metrics |= _ratio_metrics("off_policy/stale", log_ratios[stale])
    return metrics


def _log_ratios_by_age(ages: NDArray[Any], log_ratios: NDArray[np.float64]) -> dict[str, float]:
    """Returns log(p current / p sampling) by the age of the sampling version, for the ages that occur: the
    mean is the direction in which the policy has moved, the mean of the absolute values how far."""
    metrics = {}
    for age in range(OLDEST + 2):
        chosen = log_ratios[ages == age if age <= OLDEST else ages > OLDEST]
        if chosen.size:
            name = f"off_policy/age/{age if age <= OLDEST else f'over_{OLDEST}'}"
            metrics[f"{name}/log_ratio_mean"] = float(chosen.mean())
            metrics[f"{name}/log_ratio_abs_mean"] = float(np.abs(chosen).mean())
    return metrics


def _ratio_metrics(prefix: str, log_ratios: NDArray[np.float64]) -> dict[str, float]:
    ratios = np.exp(log_ratios)
    return {
        f"{prefix}/ratio_mean": float(ratios.mean()),
        f"{prefix}/ratio_min": float(ratios.min()),
        f"{prefix}/ratio_max": float(ratios.max()),
        # KL(sampling policy || current policy), the estimator k3: never negative, low variance.
        f"{prefix}/kl": float((ratios - 1 - log_ratios).mean()),
    }
