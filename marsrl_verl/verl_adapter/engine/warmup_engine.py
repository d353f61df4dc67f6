"""verl's FSDP engine with a warm-up whose first update trains, and the learning rate as it was used."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead


class WarmupFSDPEngine(FSDPEngineWithLMHead):
    """Upstream behaviour: a warm-up of n steps has the rates 0, 1/n, 2/n, …, so that the first step trains
    nothing, and the rate that is reported for a step is that of the next one."""

    def _build_lr_scheduler(self, optimizer: Optimizer) -> LambdaLR:
        return from_the_first_step(super()._build_lr_scheduler(optimizer))

    def lr_scheduler_step(self) -> float:
        """Advance the schedule; returns the rate that the updates before it used."""
        used = float(self.optimizer.param_groups[0]["lr"])
        super().lr_scheduler_step()
        return used


def from_the_first_step(scheduler: LambdaLR) -> LambdaLR:
    """The schedule itself, or where it begins with rate 0 the same one a step earlier: 1/n, 2/n, …, 1. This
    is what verl's cosine schedule offers as `zero_indexed_step=false`."""
    if all(scale(0) > 0 for scale in scheduler.lr_lambdas):
        return scheduler

    def earlier(scale: Any) -> Any:
        return lambda step: scale(step + 1)

    return LambdaLR(scheduler.optimizer, [earlier(scale) for scale in scheduler.lr_lambdas])
