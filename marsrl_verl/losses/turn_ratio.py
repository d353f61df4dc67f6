"""A clipped policy loss whose importance ratio is that of a whole turn (arXiv 2503.09501, eq. 12–13).

With ρ_j = π(token j) / π_old(token j) and the n tokens of a turn that are in the loss, the turn's ratio is

    arithmetic    r = 1/n Σ_j ρ_j                   (the paper)
    geometric     r = exp(1/n Σ_j log ρ_j)          (its released code; GSPO, arXiv 2507.18071, turn by turn)
    token         r_j = ρ_j                         (each token by itself: PPO)

and every token j of the turn has the loss

    -min(r A_j, clip(r, 1-ε, 1+ε) A_j), and for A_j < 0 at most -c A_j  (dual clip, arXiv 1912.09729),

averaged as the run's settings say. A clipped turn so gives no token a gradient. Else token j's gradient is
that of its own part of the turn's mean: r A_j ∇log π_j for the geometric ratio, ρ_j A_j ∇log π_j for the
arithmetic one; with one advantage for the whole turn that is A ∇r.

Settings (`LossSpec.settings`): `ratio`; `log_ratio_clip`, an upper bound of log-ratios, of single tokens for
the arithmetic ratio and of their mean for the geometric one, or None; `labels`, names of what the column
`label` numbers, for shares of clipped turns of their own. Columns: `turn` unless the ratio is that of tokens,
and where there are labels `label`.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from marsrl_verl.core.sequence import LABEL
from marsrl_verl.losses.inputs import log_frac, loss_inputs, mean_loss, turns_of
from marsrl_verl.settings.choices import TurnRatio

LARGEST_LOG_RATIO = 20.0
"""Largest log-ratio of a token, as in verl: beyond it a ratio is no number any more."""


def turn_ratio(
    *,
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The loss of a micro-batch: see the module.

    Args:
        old_log_prob, log_prob, advantages, response_mask (tokens in the loss), rollout_is_weights: (R, T)
        loss_agg_mode: not looked at; `mean_loss` knows it.
        config: the actor's, for `clip_ratio_low`, `clip_ratio_high` and `clip_ratio_c`.
    """
    settings, mask = loss_inputs().settings, response_mask.bool()
    bound = math.inf if settings["log_ratio_clip"] is None else settings["log_ratio_clip"]
    parts = Parts(mask, TurnRatio(settings["ratio"]))
    # What lies outside of the loss may be no number, and would be none in the gradient either.
    log_ratio = (log_prob - old_log_prob).masked_fill(~mask, 0.0)
    log_ratio = log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio, bounded = parts.ratio(log_ratio, bound)

    low, high, most = clip_range(config)
    plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high)
    losses = torch.maximum(plain, clipped)
    lower = -advantages * most
    dual = (advantages < 0) & (losses > lower)
    losses = torch.where(dual, lower, losses)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights

    is_clipped = clipped > plain
    weights = parts.weights
    log_frac("clip_frac", is_clipped * weights, weights)
    log_frac("dual_clip_frac", dual * weights, weights)
    log_frac("pre_clip_frac", bounded * mask, mask)
    for number, name in enumerate(settings["labels"]):
        own = weights * (loss_inputs().columns[LABEL] == number)
        log_frac(f"clip_frac/{name}", is_clipped * own, own)
    tokens = mask.sum().clamp(min=1)
    metrics = {
        "actor/pg_clipfrac": (is_clipped & mask).sum() / tokens,
        "actor/pg_clipfrac_lower": (dual & mask).sum() / tokens,
        "actor/ppo_kl": -(log_ratio.detach() * mask).sum() / tokens,
    }
    return mean_loss(losses, response_mask), {name: value.item() for name, value in metrics.items()}


class Parts:
    """Turns, or tokens: parts with a ratio of their own. `mask`: (R, T) tokens in the loss."""

    def __init__(self, mask: torch.Tensor, kind: TurnRatio) -> None:
        self.mask, self.kind = mask, kind
        if kind is TurnRatio.TOKEN:
            self.weights = mask.to(torch.float32)
            """(R, T) of a token in the loss, one over the number of those that share its ratio; else 0."""
            return
        _, self._place, self._counts = turns_of(mask, loss_inputs().columns)
        self.weights = self._spread(1.0 / self._counts[self._place].to(torch.float32))

    def ratio(self, log_ratio: torch.Tensor, bound: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(R, T) each token's ratio, whose gradient is that of its own part, and where the upper bound of
        log-ratios held it back; from the log-ratios of tokens (R, T), 0 outside of the loss."""
        if self.kind is TurnRatio.GEOMETRIC:
            log_ratio = log_ratio - log_ratio.detach() + self._means(log_ratio.detach())
        bounded = log_ratio.detach() > bound
        ratio = log_ratio.clamp(max=bound).exp()
        if self.kind is TurnRatio.ARITHMETIC:
            ratio = self._means(ratio.detach()) + ratio - ratio.detach()
        return ratio, bounded

    def _means(self, values: torch.Tensor) -> torch.Tensor:
        """(R, T) the mean over the turn of each token in the loss; 0 elsewhere."""
        some = values[self.mask]
        sums = some.new_zeros(len(self._counts)).index_add_(0, self._place, some)
        return self._spread((sums / self._counts)[self._place])

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        """(R, T) values of the tokens in the loss; 0 elsewhere."""
        return values.new_zeros(self.mask.shape).masked_scatter(self.mask, values)


def clip_range(config: Any) -> tuple[float, float, float]:
    """ε below and above 1, and the dual clip's c (`actor_rollout_ref.actor`)."""
    low, high = (
        config.clip_ratio if one is None else one for one in (config.clip_ratio_low, config.clip_ratio_high)
    )
    return float(low), float(high), float(config.clip_ratio_c)
