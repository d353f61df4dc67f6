"""What the loss of a step is given, beyond the rows: log-probabilities, ratios, masks."""

from __future__ import annotations

import torch
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from marsrl_verl.algos.choices import OffPolicyMode
from marsrl_verl.algos.mastered_tokens import mastered_positive_tokens
from marsrl_verl.algos.off_policy import staleness_metrics
from marsrl_verl.config.schema import MasteredTokensConfig, OffPolicyConfig


def entropy_metrics(batch: DataProto, entropies: torch.Tensor) -> dict[str, float]:
    """Mean entropy of the trained tokens, nats, over all and by role."""
    mask = batch.batch["response_mask"]
    roles = batch.non_tensor_batch["role"]
    rows_of = {"": [True] * len(batch), **{f"/{role}": list(roles == role) for role in sorted(set(roles))}}
    metrics = {}
    for suffix, rows in rows_of.items():
        chosen = mask[torch.tensor(rows)]
        if chosen.any():
            total = (entropies[torch.tensor(rows)] * chosen).sum() / chosen.sum()
            metrics[f"actor/entropy{suffix}"] = total.item()
    return metrics


def mask_mastered_tokens(
    batch: DataProto, entropies: torch.Tensor, settings: MasteredTokensConfig
) -> dict[str, float]:
    """Take the advantage of mastered tokens away; `response_mask`, the loss's normaliser, stays."""
    if not settings.enabled:
        return {}
    mask = batch.batch["response_mask"]
    mastered = mastered_positive_tokens(
        batch.batch["old_log_probs"],
        entropies,
        batch.batch["advantages"],
        mask,
        list(batch.non_tensor_batch["role"]),
        probability=settings.probability,
        target_entropy=settings.target_entropy,
        scope=settings.scope,
    )
    batch.batch["advantages"] = batch.batch["advantages"].masked_fill(mastered, 0.0)
    return {"actor/mastered_token_share": (mastered.sum() / mask.sum().clamp(min=1)).item()}


def correct_off_policy(batch: DataProto, settings: OffPolicyConfig, version: int) -> dict[str, float]:
    """Set what the loss compares the current probabilities with; returns staleness and ratios.

    Tokens of the newest weights were sampled by the very weights that compute `old_log_probs`: their gap
    (`rollout/log_prob_gap_*`) is numerical, anything more is a weight sync that failed.

    Args:
        batch: with `old_log_probs` under the weights about to be updated; `token_versions` is taken out.
        settings: `marsrl.off_policy`.
        version: the policy version about to be updated.
    """
    mask = batch.batch["response_mask"]
    current, sampled = batch.batch["old_log_probs"], batch.batch["rollout_log_probs"]
    versions = batch.batch.pop("token_versions")
    metrics = staleness_metrics(current, sampled, versions, mask, version)
    gaps = (current - sampled).abs()[mask.bool() & (versions == version)]
    if gaps.numel():
        metrics["rollout/log_prob_gap_mean"] = gaps.mean().item()
        metrics["rollout/log_prob_gap_max"] = gaps.max().item()
    mode = OffPolicyMode(settings.mode)
    if mode is OffPolicyMode.SAIS:
        batch.batch["old_log_probs"] = sampled.clone()
    elif mode is OffPolicyMode.TIS:
        weights, found = compute_rollout_correction_weights(
            current - sampled, mask, rollout_is="token", rollout_is_threshold=settings.tis_threshold
        )
        batch.batch["rollout_is_weights"] = weights
        # verl's figures by sequence count rows of padding as well.
        metrics |= {
            f"off_policy/tis/{name.removeprefix('rollout_is_')}": float(value)
            for name, value in found.items()
            if not name.startswith("rollout_is_seq")
        }
    return metrics
