"""The warm-up of verl's schedules, and changed hyperparameters at a resume."""

from __future__ import annotations

import copy
import math

import pytest

pytest.importorskip("verl", reason="the schedules are verl's")

import torch
from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
from verl.workers.config import FSDPOptimizerConfig

from marsrl_verl.verl_adapter.checkpoint.resumed_optimizer import as_configured
from marsrl_verl.verl_adapter.engine.warmup_engine import WarmupFSDPEngine


def built(lr=5e-4, betas=(0.9, 0.99), weight_decay=0.0, warmup=4, cosine=False):
    """Two weights with optimizer and schedule, as verl's engine builds them."""
    weights = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.AdamW([weights], lr=lr, betas=betas, weight_decay=weight_decay)
    if cosine:
        return weights, optimizer, get_cosine_schedule_with_warmup(optimizer, warmup, 20, min_lr_ratio=0.1)
    return weights, optimizer, get_constant_schedule_with_warmup(optimizer, warmup)


def train(parts, steps):
    """The learning rates of the updates."""
    weights, optimizer, schedule = parts
    rates = []
    for _ in range(steps):
        weights.grad = weights.detach().clone()
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def resumed(parts, **changes):
    """The same run in a new process: what verl saves is loaded into what the settings build."""
    new = built(**changes)
    with as_configured([new[1:]]):
        new[0].data = parts[0].data.clone()
        for part, old in zip(new[1:], parts[1:], strict=True):
            part.load_state_dict(copy.deepcopy(old.state_dict()))
    return new


@pytest.mark.parametrize("cosine", [False, True])
@pytest.mark.parametrize("after", [0, 2, 7])
def test_without_a_change_nothing_changes(cosine, after):
    kept = built(cosine=cosine)
    train(kept, after)
    again = resumed(kept, cosine=cosine)
    assert again[1].param_groups[0] | {"params": 0} == kept[1].param_groups[0] | {"params": 0}
    assert again[2].get_last_lr() == kept[2].get_last_lr()
    assert train(again, 6) == train(kept, 6)
    assert torch.equal(again[0], kept[0])


def test_a_changed_rate_acts_from_the_next_step_on_inside_its_schedule():
    before = built()
    train(before, 2)
    assert train(resumed(before, lr=1e-5), 4) == pytest.approx([0.5e-5, 0.75e-5, 1e-5, 1e-5])
    train(before, 4)
    assert train(resumed(before, lr=1e-5), 2) == [1e-5, 1e-5]
    last = train(resumed(before, lr=1e-5, cosine=True), 7)[-1]
    # Update 12 of 20, 4 of them warm-up: half of the cosine, between 1e-5 and a tenth of it.
    assert last == pytest.approx(1e-5 * (0.55 + 0.45 * math.cos(math.pi / 2)))


def test_betas_and_weight_decay_act_and_moments_stay():
    before = built()
    train(before, 3)
    weights, optimizer, _ = resumed(before, betas=(0.5, 0.9), weight_decay=0.1)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"]) == ((0.5, 0.9), 0.1)
    moments, kept = optimizer.state[weights], before[1].state[before[0]]
    assert moments["step"] == 3 and torch.equal(moments["exp_avg"], kept["exp_avg"])


def test_a_checkpoint_of_another_optimizer_is_refused():
    _, optimizer, schedule = built()
    with (
        pytest.raises(ValueError, match="2 groups of parameters, expected 1"),
        as_configured([(optimizer, schedule)]),
    ):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


# --- warm-up ---

COSINE = {"lr_scheduler_type": "cosine"}


class Engine(WarmupFSDPEngine):
    """The schedule of a real engine on one parameter, without a model."""

    def __init__(self, **optim) -> None:
        settings = {"lr": 3.0, "total_training_steps": 10, "lr_warmup_steps": 0, "min_lr_ratio": 0.0, **optim}
        self.optimizer_config = FSDPOptimizerConfig(**settings)
        self.rank = 1
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=self.optimizer_config.lr)
        self.lr_scheduler = self._build_lr_scheduler(self.optimizer)

    def update(self) -> tuple[float, float]:
        """How far an update with gradient -1 moves the weight, and the rate that is reported."""
        before = float(self.weight.detach())
        self.weight.grad = torch.full((1,), -1.0)
        self.optimizer.step()
        return float(self.weight.detach()) - before, self.lr_scheduler_step()


@pytest.mark.parametrize(
    ("optim", "rates"),
    [
        ({"lr_warmup_steps": 3}, [1.0, 2.0, 3.0, 3.0]),
        ({"lr_warmup_steps_ratio": 0.2}, [1.5, 3.0, 3.0]),
        ({}, [3.0, 3.0]),
        # A half period of the cosine over the eight steps after the warm-up.
        ({**COSINE, "lr_warmup_steps": 2}, [1.5, 3.0, 2.8858]),
        ({**COSINE, "lr_warmup_steps": 2, "zero_indexed_step": False}, [1.5, 3.0, 2.8858]),
        (COSINE, [3.0, 2.9266]),
    ],
)
def test_every_update_moves_by_the_rate_that_is_reported(optim, rates):
    engine = Engine(**optim)
    steps = [engine.update() for _ in rates]
    assert [reported for _, reported in steps] == pytest.approx(rates, abs=1e-4)
    assert [moved for moved, _ in steps] == pytest.approx(rates, abs=1e-4)


def test_a_resumed_warm_up_goes_on():
    first, second = Engine(lr_warmup_steps=3), Engine(lr_warmup_steps=3)
    first.update()
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.lr_scheduler.load_state_dict(first.lr_scheduler.state_dict())
    assert [second.update()[1] for _ in range(3)] == pytest.approx([2.0, 3.0, 3.0])
