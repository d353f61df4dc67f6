"""A resumed run's optimizer: moments and counts from the checkpoint, hyperparameters from the configuration.

Upstream behaviour: `load_checkpoint` restores the optimizer's groups and the schedule's base rates as they
were, so a learning rate, betas or weight decay that was changed for the resume has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


@contextmanager
def as_configured(loaded: Sequence[tuple[Optimizer, LambdaLR]]) -> Iterator[None]:
    """Keeps the hyperparameters of optimizers whose states are loaded inside, and gives them the rates that
    their schedules have for the step they then stand at.

    Raises:
        ValueError: the checkpoint has another number of groups.
    """
    settings = []
    for optimizer, schedule in loaded:
        # `defaults` has the constructor's arguments; what else a group holds is the optimizer's own state.
        names = [name for name in optimizer.defaults if name != "lr"]
        groups = [{name: group[name] for name in names if name in group} for group in optimizer.param_groups]
        settings.append((groups, list(schedule.base_lrs)))
    yield
    for (optimizer, schedule), (groups, base_rates) in zip(loaded, settings, strict=True):
        found, expected = len(optimizer.param_groups), len(groups)
        if found != expected:
            raise ValueError(f"the checkpoint has {found} groups of parameters, expected {expected}")
        scales = [scale(schedule.last_epoch) for scale in schedule.lr_lambdas]
        rates = [base * scale for base, scale in zip(base_rates, scales, strict=True)]
        for group, values, base, rate in zip(optimizer.param_groups, groups, base_rates, rates, strict=True):
            group.update(values, initial_lr=base, lr=rate)
        schedule.base_lrs, schedule._last_lr = base_rates, rates
