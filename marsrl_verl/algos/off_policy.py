"""How old the weights are that sampled a token, and what that does to its probability.

A response of several segments holds tokens of several policy versions (UloRL, arXiv 2507.19766,
§3.1.2). These figures are logged in every mode of off-policy correction.
"""

from __future__ import annotations

import torch

OLDEST = 3
"""Ages up to this many versions are told apart; what is older is counted together."""


def staleness_metrics(
    log_probs: torch.Tensor,
    behaviour_log_probs: torch.Tensor,
    token_versions: torch.Tensor,
    response_mask: torch.Tensor,
    version: int,
    is_current: torch.Tensor | None = None,
) -> dict[str, float]:
    """Age of the trained tokens and their true importance ratio; empty without a token.

    Args:
        log_probs: under the weights about to be updated, (B, T).
        behaviour_log_probs: under the weights that sampled the token, (B, T): where the loss compares with
            such ones, those.
        token_versions: the policy version that sampled the token, (B, T).
        response_mask: 1 where the model sampled the token, (B, T).
        version: the policy version about to be updated.
        is_current: (B, T) where `log_probs` are under those weights; other tokens have an age but no ratio.
            None: everywhere.
    """
    mask = response_mask.bool()
    if not mask.any():
        return {}
    ages = (version - token_versions)[mask].float()
    metrics = {
        "off_policy/staleness_mean": ages.mean().item(),
        "off_policy/staleness_max": ages.max().item(),
        **{f"off_policy/older_than/{age}": (ages > age).float().mean().item() for age in range(OLDEST + 1)},
    }
    known = mask if is_current is None else mask & is_current
    ages = (version - token_versions)[known].float()
    log_ratios = (log_probs - behaviour_log_probs)[known].float()
    if log_ratios.numel():
        metrics |= _ratio_metrics("off_policy", log_ratios) | _log_ratios_by_age(ages, log_ratios)
    stale = ages > 0
    if stale.any():
        metrics |= _ratio_metrics("off_policy/stale", log_ratios[stale])
    return metrics


def _log_ratios_by_age(ages: torch.Tensor, log_ratios: torch.Tensor) -> dict[str, float]:
    """log(p current / p sampling) by the age of the sampling version, of the ages that occur.

    The mean says which way the policy has moved, the mean of the absolute values how far.
    """
    metrics = {}
    for age in range(OLDEST + 2):
        chosen = log_ratios[ages == age if age <= OLDEST else ages > OLDEST]
        if chosen.numel():
            name = f"off_policy/age/{age if age <= OLDEST else f'over_{OLDEST}'}"
            metrics[f"{name}/log_ratio_mean"] = chosen.mean().item()
            metrics[f"{name}/log_ratio_abs_mean"] = chosen.abs().mean().item()
    return metrics


def _ratio_metrics(prefix: str, log_ratios: torch.Tensor) -> dict[str, float]:
    ratios = log_ratios.exp()
    return {
        f"{prefix}/ratio_mean": ratios.mean().item(),
        f"{prefix}/ratio_min": ratios.min().item(),
        f"{prefix}/ratio_max": ratios.max().item(),
        # KL(sampling policy || current policy), the estimator k3: never negative, low variance.
        f"{prefix}/kl": (ratios - 1 - log_ratios).mean().item(),
    }
