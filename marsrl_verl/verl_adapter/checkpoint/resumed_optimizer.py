"""A resumed run's optimizer: moments and counts from the checkpoint, hyperparameters from the configuration.

Upstream behaviour: `load_checkpoint` restores the optimizer's groups and the schedule's base rates as they
were, so a learning rate, betas or weight decay that was changed for the resume has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Configured:
    """The hyperparameters of a new optimizer, by group."""

    groups: list[dict[str, Any]]
    base_rates: list[float]


def configured(optimizer: Any, schedule: Any) -> Configured:
    """What the configuration says: to be taken of an optimizer and a schedule before they are loaded."""
    # `defaults` has the constructor's arguments; whatever else a group holds is the optimizer's own state.
    names = [name for name in optimizer.defaults if name != "lr"]
    groups = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
    return Configured(groups, list(schedule.base_lrs))


def apply(settings: Configured, optimizer: Any, schedule: Any) -> None:
    """Give a loaded optimizer the configured hyperparameters, and the learning rate that the schedule has for
    the step it stands at.

    Args:
        settings: as `configured` found them.
        optimizer: with the checkpoint's state.
        schedule: a `LambdaLR`, as verl's schedules are, with the checkpoint's state.

    Raises:
        ValueError: the checkpoint has another number of groups.
    """
    groups = optimizer.param_groups
    if len(groups) != len(settings.groups):
        found, expected = len(groups), len(settings.groups)
        raise ValueError(f"the checkpoint has {found} groups of parameters, expected {expected}")
    schedule.base_lrs = list(settings.base_rates)
    rates = [
        base * rate(schedule.last_epoch)
        for base, rate in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
    ]
    for group, values, base, rate in zip(groups, settings.groups, schedule.base_lrs, rates, strict=True):
        group.update(values)
        group["initial_lr"], group["lr"] = base, rate
    schedule._last_lr = rates
