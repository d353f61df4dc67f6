from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="the adapter's tests need verl")

import torch

from marsrl_verl.verl_adapter.engine.warmup_engine import WarmupFSDPEngine

COSINE = {"lr_scheduler_type": "cosine"}


class Engine(WarmupFSDPEngine):
    """The schedule of a real engine on one parameter, without a model."""

    def __init__(self, **optim) -> None:
        settings = {
            "lr": 3.0,
            "total_training_steps": 10,
            "lr_warmup_steps": 0,
            "lr_warmup_steps_ratio": 0.0,
            "lr_scheduler_type": "constant",
            "min_lr_ratio": 0.0,
            "num_cycles": 0.5,
            "zero_indexed_step": True,
        }
        self.optimizer_config = SimpleNamespace(**{**settings, **optim})
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
