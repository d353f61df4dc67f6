"""One step of a warm start: the loss of transcripts, and the optimizers of so small a network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

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


class Learner:
    """Muon for the network's matrices, AdamW for embeddings and norms. The rates rise over the first steps,
    are held, and fall linearly to 0 over the last half.

    Args:
        model: changed in place.
        total: steps in all.
        matrix_rate, weight_decay: of Muon.
        rate, beta2: of AdamW.
        warmup: steps over which the rates rise.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        total: int,
        *,
        matrix_rate: float,
        rate: float,
        weight_decay: float,
        beta2: float,
        warmup: int,
    ) -> None:
        self.model = model
        embedding = model.get_input_embeddings().weight
        matrices: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for parameter in model.parameters():
            is_matrix = parameter.ndim == 2 and parameter is not embedding
            (matrices if is_matrix else others).append(parameter)
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, lr=matrix_rate, weight_decay=weight_decay, momentum=0.95),
            torch.optim.AdamW(others, lr=rate, betas=(0.9, beta2), weight_decay=0.0),
        )
        self._schedules = [
            torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + 1) / warmup, 2 * (total - step) / total)
            )
            for optimizer in self._optimizers
        ]

    def step(self, losses: Iterable[torch.Tensor]) -> list[float]:
        """Go down the sum of the losses, which are computed one after the other; returns them."""
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
