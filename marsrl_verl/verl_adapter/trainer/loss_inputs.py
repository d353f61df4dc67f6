"""The probabilities with which the loss compares the current ones."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from marsrl_verl.algos.off_policy import staleness_metrics
from marsrl_verl.config.schema import OffPolicyConfig
from marsrl_verl.core.rows import (
    LOSS_WEIGHTS,
    OLD_LOG_PROBS,
    RESPONSE_MASK,
    ROLLOUT_LOG_PROBS,
    TOKEN_VERSIONS,
    Rows,
)
from marsrl_verl.core.sequence import RECORDED_LOG_PROBS
from marsrl_verl.settings.choices import OffPolicyMode


def correct_off_policy(
    rows: Rows,
    settings: OffPolicyConfig,
    versions: NDArray[np.int32],
    computed: NDArray[np.bool_],
    cut_roles: frozenset[str] = frozenset(),
) -> dict[str, float]:
    """Sets the probabilities with which the loss compares the current ones; returns staleness and ratios.

    Tokens of the newest weights were sampled by the very weights that compute `old_log_probs`: their gap
    (`rollout/log_probs_diff_*`) is numerical, anything more is a weight sync that failed.

    Args:
        rows: with `old_log_probs` under the weights about to be updated; in mode `recorded` with
            `recorded_log_probs`. In mode `tis` they get `loss_weights`.
        settings: `marsrl.off_policy`.
        versions: (B,) the version of each row's policy that is about to be updated.
        computed: (B,) rows whose `old_log_probs` were computed; recorded ones of tokens of older weights tell
            nothing about the current ones.
        cut_roles: roles that the engine samples from a part of the vocabulary (top_p, top_k, a grammar):
            their gaps are no fault and left out.
    """
    columns, mode = rows.columns, OffPolicyMode(settings.mode)
    mask = columns[RESPONSE_MASK].astype(bool)
    current, sampled = columns[OLD_LOG_PROBS], columns[ROLLOUT_LOG_PROBS]
    newest = rows.to_tokens(versions)
    is_new = columns[TOKEN_VERSIONS] == newest
    behaviour = sampled
    if mode is OffPolicyMode.RECORDED:
        recorded = columns[RECORDED_LOG_PROBS]
        known = np.where(columns[TOKEN_VERSIONS] < newest, sampled, current)
        behaviour = np.where(np.isnan(recorded), known, recorded)
    metrics = staleness_metrics(rows, behaviour, newest, rows.to_tokens(computed) | is_new)
    whole = np.array([rows.sequence(row).role not in cut_roles for row in range(len(rows))], dtype=bool)
    gaps = np.abs(current - sampled)[mask & is_new & rows.to_tokens(whole)]
    if gaps.size:
        metrics["rollout/log_probs_diff_mean"] = float(gaps.mean(dtype=np.float64))
        metrics["rollout/log_probs_diff_max"] = float(gaps.max())
    if mode is OffPolicyMode.SAIS:
        columns[OLD_LOG_PROBS] = sampled
    elif mode is OffPolicyMode.RECORDED:
        columns[OLD_LOG_PROBS] = behaviour
    elif mode is OffPolicyMode.TIS:
        metrics |= _weight_tokens(rows, current - sampled, settings.tis_threshold)
    return metrics


def _weight_tokens(rows: Rows, log_ratios: NDArray[np.float32], threshold: float) -> dict[str, float]:
    """Truncated importance weights of single tokens (verl's), with their figures."""
    # One row of all tokens: the weights are of single tokens, and verl's figures by sequence are not taken.
    weights, metrics = compute_rollout_correction_weights(
        torch.from_numpy(log_ratios)[None],
        torch.from_numpy(rows.columns[RESPONSE_MASK])[None].long(),
        rollout_is="token",
        rollout_is_threshold=threshold,
    )
    rows.columns[LOSS_WEIGHTS] = weights[0].float().numpy()
    return {
        f"off_policy/tis/{name.removeprefix('rollout_is_')}": float(value)
        for name, value in metrics.items()
        if not name.startswith("rollout_is_seq")
    }
