"""verl's FSDP engine with a warm-up whose first update trains, the learning rate as it was used, and the
largest weight after an update."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from verl.utils.device import get_device_name
from verl.utils.metric import AggregationType, Metric

from marsrl_verl.verl_adapter.engine.fused_head import FusedHeadFSDPEngine

WEIGHTS_MAX = "weights_max"
"""Metric: the largest absolute value of the weights that are trained; NaN where one of them is."""


class WarmupFSDPEngine(FusedHeadFSDPEngine):
    """Upstream behaviour: a warm-up of n steps has the rates 0, 1/n, 2/n, …, so that the first step trains
    nothing, and the rate that is reported for a step is that of the next one."""

    def _build_lr_scheduler(self, optimizer: Optimizer) -> LambdaLR:
        return from_the_first_step(super()._build_lr_scheduler(optimizer))

    def lr_scheduler_step(self) -> float:
        """Advance the schedule; returns the rate that the updates before it used."""
        used = float(self.optimizer.param_groups[0]["lr"])
        super().lr_scheduler_step()
        return used

    def train_batch(self, data: TensorDict, loss_function: Any) -> Any:
        """Trains as upstream, and measures `WEIGHTS_MAX` after the update.

        Upstream behaviour: weights are not checked, and an optimizer can spoil them with finite gradients.
        """
        outputs = super().train_batch(data, loss_function)
        largest = largest_value(one for one in self.module.parameters() if one.requires_grad)
        if self.use_ulysses_sp:
            # The ranks that share a sequence have other shards, and one of them alone reports.
            largest = largest_of_ranks(largest, self.ulysses_parallel_group)
        if self.is_mp_src_rank_with_outputs():
            outputs["metrics"][WEIGHTS_MAX] = Metric(AggregationType.MAX, largest)
        return outputs


def largest_of_ranks(value: float, group: torch.distributed.ProcessGroup) -> float:
    """The largest of the ranks' values; infinite where one of them is NaN, which a maximum may not show."""
    found = torch.tensor(math.inf if math.isnan(value) else value, device=get_device_name())
    torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX, group)
    return float(found)


def largest_value(parameters: Iterable[torch.Tensor]) -> float:
    """The largest absolute value of this rank's parts of parameters; NaN where one of them is, 0 of none."""
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in parameters]
    parts = [one.detach() for one in parts if one.numel()]
    if not parts:
        return 0.0
    norms = torch._foreach_norm(parts, ord=float("inf"))
    return float(torch.stack([one.float() for one in norms]).max())


def from_the_first_step(scheduler: LambdaLR) -> LambdaLR:
    """The schedule itself, or where it begins with rate 0 the same one a step earlier: 1/n, 2/n, …, 1. This
    is what verl's cosine schedule offers as `zero_indexed_step=false`."""
    if all(scale(0) > 0 for scale in scheduler.lr_lambdas):
        return scheduler

    def earlier(scale: Any) -> Any:
        return lambda step: scale(step + 1)

    return LambdaLR(scheduler.optimizer, [earlier(scale) for scale in scheduler.lr_lambdas])
