"""Changed hyperparameters at a resume, on the optimizer and the schedules that verl builds."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

from marsrl_verl.verl_adapter.checkpoint.resumed_optimizer import as_configured


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
