"""Inputs of a policy loss beside verl's arguments, and the mean over the mini-batch.

A loss in a method's folder (`core.method.LossSpec.name`) imports this module and torch, nothing of verl's:

    def capped(*, old_log_prob, log_prob, advantages, response_mask, **_):
        cap = loss_inputs().settings["cap"]
        ratio = (log_prob - old_log_prob).exp().clamp(max=cap)
        return mean_loss(-ratio * advantages, response_mask), {}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from marsrl_verl.core.sequence import TURN
from marsrl_verl.settings.choices import LossMean


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs for a micro-batch of R rows and at most T response tokens, and for its mini-batch, all ranks and
    micro-batches together. Rows that only fill up a batch count for nothing."""

    columns: Mapping[str, torch.Tensor]
    """(R, T) each, by name: the columns of `LossSpec.columns`, 0 behind a row's end."""
    settings: Mapping[str, Any]
    """`LossSpec.settings`."""
    tokens: int
    """Tokens in the loss, of the mini-batch."""
    sequences: int
    """Rows with such a token, of the mini-batch."""
    turns: int
    """Their turns, of the mini-batch: a row whose tokens have no turn is one. Equals `sequences` unless the
    column `turn` is requested."""
    ranks: int
    """Data-parallel ranks, over which FSDP averages gradients: a sum over the mini-batch is that of the
    micro-batches' sums times this."""
    mean: str = "token-mean"
    """Mean of the token losses: `marsrl.training.loss_mean`, else `actor.loss_agg_mode`."""
    scale: float | None = None
    """`actor.loss_scale_factor`, by which `seq-mean-token-sum-norm` divides."""


@dataclass(slots=True)
class LossCall:
    """One call of an update's loss."""

    inputs: LossInputs
    averaged: bool = False
    """True if it called `mean_loss`."""
    shares: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Arguments of `log_frac` by metric: the sum that is counted, and the sum that it is a share of."""


_call: ContextVar[LossCall | None] = ContextVar("loss_call", default=None)


@contextmanager
def giving(inputs: LossInputs) -> Iterator[LossCall]:
    """Has the policy loss that is called inside read these inputs."""
    token = _call.set(call := LossCall(inputs))
    try:
        yield call
    finally:
        _call.reset(token)


def loss_inputs() -> LossInputs:
    """The inputs that the policy loss which calls this can read; RuntimeError if none does."""
    return _current().inputs


def _current() -> LossCall:
    if (found := _call.get()) is None:
        raise RuntimeError(
            "loss_inputs() and mean_loss() are for policy losses, while an update computes them"
        )
    return found


def log_frac(name: str, counted: torch.Tensor, of: torch.Tensor) -> None:
    """Logs a share as the metric `actor/<name>`: sums over all micro-batches, ranks and updates of a step are
    divided, so that it does not depend on how the step is cut. Every micro-batch has to name the same ones.

    Args:
        name: of the metric.
        counted: any shape; its sum is what counts.
        of: any shape; its sum is what it is a share of. Where that is 0 in a step, there is no metric.
    """
    _current().shares[name] = float(counted.sum()), float(of.sum())


def mean_loss(losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean over the mini-batch that the run's settings name, as verl's `agg_loss` and over turns: the
    sum over micro-batches and the mean over ranks is the same for every cut.

    Args:
        losses: (R, T)
        mask: (R, T) tokens in the loss, as the policy loss is given it.
    """
    call = _current()
    call.averaged = True
    weights = mean_weights(mask.bool(), call.inputs).to(losses.dtype)
    return (losses.masked_fill(~mask.bool(), 0.0) * weights).sum() * call.inputs.ranks


def mean_weights(mask: torch.Tensor, inputs: LossInputs) -> torch.Tensor:
    """(R, T) what a token's loss counts for in the mean over the mini-batch; 0 outside of `mask`, (R, T)
    boolean. A mean over turns needs the column `turn`. Raises ValueError: there is no such mean, or it lacks
    its scale."""
    if inputs.mean in tuple(LossMean):
        return _turn_weights(mask, inputs)
    weights = mask.to(torch.float32)
    of_row = 1.0 / max(inputs.sequences, 1)
    if inputs.mean == "token-mean":
        return weights / max(inputs.tokens, 1)
    if inputs.mean == "token-sum":
        return weights
    if inputs.mean == "seq-mean-token-sum":
        return weights * of_row
    if inputs.mean == "seq-mean-token-sum-norm" and inputs.scale:
        return weights * of_row / inputs.scale
    if inputs.mean == "seq-mean-token-mean":
        return weights * of_row / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
    raise ValueError(f"no mean of token losses: {inputs.mean!r} with the scale {inputs.scale}")


def _turn_weights(mask: torch.Tensor, inputs: LossInputs) -> torch.Tensor:
    rows, place, tokens = turns_of(mask, inputs.columns)
    found = 1.0 / tokens[place]
    if inputs.mean == LossMean.TURN:
        found = found / max(inputs.turns, 1)
    else:
        found = found / torch.bincount(rows)[rows[place]] / max(inputs.sequences, 1)
    return found.new_zeros(mask.shape).masked_scatter(mask, found)


def turns_of(
    mask: torch.Tensor, columns: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The K turns with tokens in the loss: (K,) the row of each, the place among them of each such token, and
    (K,) the number of their tokens."""
    rows = torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]
    pairs = torch.stack([rows, columns[TURN].long()[mask]])
    found, place, tokens = torch.unique(pairs, dim=1, return_inverse=True, return_counts=True)
    return found[0], place, tokens
