"""Supervised training of a tiny network on generated transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from marsrl_verl.demo.transcripts import Transcript

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class Rates:
    """How the weights are moved."""

    learning_rate: float = 3e-3
    """Of embeddings and norms (AdamW)."""
    matrix_learning_rate: float = 0.025
    """Of the other weights (Muon, which needs a third of AdamW's steps here)."""
    warmup_steps: int = 20
    """Both rates rise over these steps, are held, and fall linearly to 0 over the last half of all steps."""
    beta2: float = 0.98
    weight_decay: float = 0.01
    """Of the weights that Muon trains."""


def fit(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    draw: Callable[[int], Sequence[Transcript]],
    steps: int,
    rates: Rates | None = None,
) -> Iterator[tuple[int, float]]:
    """Train `model` in place; yields (step, mean loss of a token).

    Args:
        model: a causal language model in float32.
        tokenizer: its own.
        draw: the transcripts of a step, by its number from 0 on.
        steps: how many.
        rates: None: the usual ones.
    """
    rates = rates or Rates()
    optimizers = _optimizers(model, rates)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            one, lambda step: min(1.0, (step + 1) / rates.warmup_steps, 2 * (steps - step) / steps)
        )
        for one in optimizers
    ]
    for step in range(steps):
        parts = encode(tokenizer, draw(step))
        total, found = sum(weights_BT[:, 1:].sum() for _, weights_BT in parts), 0.0
        for ids_BT, weights_BT in parts:
            logits_BTV = model(input_ids=ids_BT).logits[:, :-1]
            losses = torch.nn.functional.cross_entropy(
                logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none"
            )
            loss = (losses * weights_BT[:, 1:].flatten()).sum() / total
            loss.backward()
            found += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        yield step + 1, found


_PARTS = 3


def encode(
    tokenizer: PreTrainedTokenizerFast, transcripts: Sequence[Transcript]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Right-padded ids and loss weights, both (B, T), in a few parts of like length; prompts weigh 0."""
    prompts = [
        tokenizer.apply_chat_template(list(one.messages), add_generation_prompt=True, tokenize=False)
        for one in transcripts
    ]
    prompt_ids = tokenizer(prompts, add_special_tokens=False).input_ids
    responses = tokenizer([one.response for one in transcripts], add_special_tokens=False).input_ids
    pairs = [
        (prompt, [*response, tokenizer.eos_token_id])
        for prompt, response in zip(prompt_ids, responses, strict=True)
    ]
    pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
    size = -(-len(pairs) // _PARTS)
    return [_padded(pairs[at : at + size], tokenizer.pad_token_id) for at in range(0, len(pairs), size)]


def _padded(pairs: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(prompt) + len(response) for prompt, response in pairs)
    ids_BT = torch.full((len(pairs), width), pad)
    weights_BT = torch.zeros(len(pairs), width)
    for row, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response)
        ids_BT[row, :end] = torch.tensor(prompt + response)
        weights_BT[row, len(prompt) : end] = 1.0
    return ids_BT, weights_BT


def _optimizers(model: PreTrainedModel, rates: Rates) -> tuple[torch.optim.Optimizer, ...]:
    embedding = model.get_input_embeddings().weight
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for parameter in model.parameters():
        is_matrix = parameter.ndim == 2 and parameter is not embedding
        (matrices if is_matrix else others).append(parameter)
    return (
        torch.optim.Muon(
            matrices, lr=rates.matrix_learning_rate, weight_decay=rates.weight_decay, momentum=0.95
        ),
        torch.optim.AdamW(others, lr=rates.learning_rate, betas=(0.9, rates.beta2), weight_decay=0.0),
    )
