"""Supervised training of a tiny network on generated transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from studies.tiny.learning import Learner, weighted_loss
from studies.tiny.transcripts import Transcript

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
    """Trains `model` in place; yields (step, mean loss of a token).

    Args:
        model: a causal language model in float32.
        tokenizer: its own.
        draw: the transcripts of a step, by its number from 0 on.
        steps: how many.
        rates: None: the usual ones.
    """
    learner = Learner(model, steps, rates or Rates())
    for step in range(steps):
        yield step + 1, sum(learner.step(_losses(model, encode(tokenizer, draw(step)))))


def _losses(
    model: PreTrainedModel, parts: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[torch.Tensor]:
    """What each part adds to the mean loss of all their tokens."""
    shares = [weights_BT[:, 1:].sum() for _, weights_BT in parts]
    for (ids_BT, weights_BT), share in zip(parts, shares, strict=True):
        yield weighted_loss(model, ids_BT, weights_BT) * (share / sum(shares))


_PARTS = 3


def encode(
    tokenizer: PreTrainedTokenizerFast, transcripts: Sequence[Transcript], parts: int = _PARTS
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
    size = -(-len(pairs) // parts)
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
