"""One step of a warm start: the loss of transcripts, and the optimizers of so small a network."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def weighted_loss(model: PreTrainedModel, ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
    """The mean loss of the tokens, each with its weight."""
    logits_BTV = model(input_ids=ids_BT).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(
        logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
    )
    weights = weights_BT[:, 1:].flatten()
    return (loss * weights).sum() / weights.sum()


class Rates(Protocol):
    """What a recipe says of the optimizers."""

    @property
    def learning_rate(self) -> float:
        """Of AdamW."""

    @property
    def matrix_learning_rate(self) -> float:
        """Of Muon."""

    @property
    def warmup_steps(self) -> int:
        """Steps over which both rise."""

    @property
    def beta2(self) -> float:
        """Of AdamW."""

    @property
    def weight_decay(self) -> float:
        """Of Muon."""


class Learner:
    """Muon for the network's matrices, AdamW for embeddings and norms. The rates rise over the first steps,
    are held, and fall linearly to 0 over the last half.

    Args:
        model: changed in place.
        total: steps in all.
        rates: a recipe.
    """

    def __init__(self, model: PreTrainedModel, total: int, rates: Rates) -> None:
        self.model = model
        embedding = model.get_input_embeddings().weight
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for parameter in model.parameters():
            is_matrix = parameter.ndim == 2 and parameter is not embedding
            (matrices if is_matrix else others).append(parameter)
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                matrices, lr=rates.matrix_learning_rate, weight_decay=rates.weight_decay, momentum=0.95
            ),
            torch.optim.AdamW(others, lr=rates.learning_rate, betas=(0.9, rates.beta2), weight_decay=0.0),
        )
        self._schedules = [
            torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + 1) / rates.warmup_steps, 2 * (total - step) / total)
            )
            for optimizer in self._optimizers
        ]

    def step(self, losses: Iterable[torch.Tensor]) -> list[float]:
        """Goes down the sum of the losses, which are computed one after the other; returns them."""
        values = []
        for loss in losses:
            loss.backward()
            values.append(loss.item())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, schedule in zip(self._optimizers, self._schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return values


def report(run: Iterable[tuple[int, Mapping[str, float]]], total: int, every: int) -> None:
    """Goes through the steps of a warm start; the losses of each so many steps go to standard error.

    Args:
        run: (step, loss by kind of transcript).
        total: steps in all.
    """
    start = time.monotonic()
    for step, losses in run:
        if step % every == 0:
            shown = "  ".join(f"{kind} {loss:.3f}" for kind, loss in losses.items())
            seconds = time.monotonic() - start
            print(f"step {step}/{total}  {seconds:.0f} s  loss: {shown}", file=sys.stderr)
