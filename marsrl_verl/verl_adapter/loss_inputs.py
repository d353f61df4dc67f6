"""What the loss of a step is given, beyond the rows: log-probabilities, ratios, masks."""

from __future__ import annotations

import torch
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from marsrl_verl.algos.mastered_tokens import mastered_positive_tokens, tokens_to_mask
from marsrl_verl.algos.off_policy import staleness_metrics
from marsrl_verl.config.schema import OffPolicyConfig
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.declaration import MasteredTokensConfig


def entropy_metrics(batch: DataProto, entropies: torch.Tensor) -> dict[str, float]:
    """Mean entropy of the trained tokens, nats: over all, by role and by stage."""
    return _token_means(batch, "entropy", entropies)


def mask_mastered_tokens(
    batch: DataProto, entropies: torch.Tensor, settings: MasteredTokensConfig
) -> dict[str, float]:
    """Take the advantage of mastered tokens away; `response_mask`, the loss's normaliser, stays.

    Returns the shares of trained tokens that are mastered and, where masking is enabled, masked: over all,
    by role and by stage.
    """
    mask, roles = batch.batch["response_mask"], list(batch.non_tensor_batch["role"])
    mastered = mastered_positive_tokens(
        batch.batch["old_log_probs"], batch.batch["advantages"], mask, probability=settings.probability
    )
    metrics = _token_means(batch, "mastered_token_share", mastered)
    if settings.enabled:
        masked = tokens_to_mask(
            mastered,
            entropies,
            mask,
            roles,
            target_entropy=settings.target_entropy,
            scope=settings.scope,
        )
        batch.batch["advantages"] = batch.batch["advantages"].masked_fill(masked, 0.0)
        metrics |= _token_means(batch, "masked_token_share", masked)
    return metrics


def _token_means(batch: DataProto, name: str, values_BT: torch.Tensor) -> dict[str, float]:
    """The mean of a figure over the trained tokens: of all, of each role and of each stage.

    A role or stage without a token is left out.
    """
    mask = batch.batch["response_mask"]
    rows_of = {"actor": torch.ones(len(batch), dtype=torch.bool)}
    for column in ("role", "stage"):
        labels = batch.non_tensor_batch[column]
        rows_of |= {f"{column}/{label}": torch.tensor(list(labels == label)) for label in sorted(set(labels))}
    metrics = {}
    for prefix, rows in rows_of.items():
        tokens = mask[rows].sum()
        if tokens > 0:
            metrics[f"{prefix}/{name}"] = ((values_BT[rows] * mask[rows]).sum() / tokens).item()
    return metrics


def correct_off_policy(
    batch: DataProto, settings: OffPolicyConfig, version: int, computed: torch.Tensor | None = None
) -> dict[str, float]:
    """Set what the loss compares the current probabilities with; returns staleness and ratios.

    Tokens of the newest weights were sampled by the very weights that compute `old_log_probs`: their gap
    (`rollout/log_prob_gap_*`) is numerical, anything more is a weight sync that failed.

    Args:
        batch: with `old_log_probs` under the weights about to be updated; `token_versions` and
            `recorded_log_probs` are taken out.
        settings: `marsrl.off_policy`.
        version: the policy version about to be updated.
        computed: (B,) rows whose `old_log_probs` were computed; those of the others are recorded, which of
            tokens of older weights tells nothing about the current ones. None: all of them.
    """
    mask, mode = batch.batch["response_mask"], OffPolicyMode(settings.mode)
    current, sampled = batch.batch["old_log_probs"], batch.batch["rollout_log_probs"]
    versions, recorded = batch.batch.pop("token_versions"), batch.batch.pop("recorded_log_probs")
    behaviour = sampled
    if mode is OffPolicyMode.RECORDED:
        known = torch.where(versions < version, sampled, current)
        behaviour = torch.where(recorded.isnan(), known, recorded)
    is_current = None if computed is None else computed[:, None] | (versions == version)
    metrics = staleness_metrics(current, behaviour, versions, mask, version, is_current)
    gaps = (current - sampled).abs()[mask.bool() & (versions == version)]
    if gaps.numel():
        metrics["rollout/log_prob_gap_mean"] = gaps.mean().item()
        metrics["rollout/log_prob_gap_max"] = gaps.max().item()
    if mode is OffPolicyMode.SAIS:
        batch.batch["old_log_probs"] = sampled.clone()
    elif mode is OffPolicyMode.RECORDED:
        batch.batch["old_log_probs"] = behaviour
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
