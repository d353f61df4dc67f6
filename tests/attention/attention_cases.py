"""Inputs for the tests of FCI: random queries and keys over sequences cut into steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from marsrl_verl.attention.layout import StepLayout, build_layout


@dataclass(frozen=True)
class Case:
    """Queries and keys of one layer with their layout."""

    query: torch.Tensor
    key: torch.Tensor
    layout: StepLayout
    scale: float


def packed_layout(
    sequences: list[list[int]], *, delta: int, unmeasured: tuple[int, ...] = (0, 1)
) -> StepLayout:
    """One packed row. `sequences` holds every sequence's step lengths, the prompt's first."""
    ids, owners = [], []
    for number, lengths in enumerate(sequences):
        for step, length in enumerate(lengths):
            ids += [step] * length
        owners += [number] * sum(lengths)
    step_ids = torch.tensor(ids)
    measured = ~torch.isin(step_ids, torch.tensor(unmeasured))
    return build_layout(step_ids, measured, delta=delta, sequence_ids=torch.tensor(owners))


def random_case(
    sequences: list[list[int]],
    *,
    delta: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    unmeasured: tuple[int, ...] = (0, 1),
) -> Case:
    """Normal queries and keys, sharp enough that attention is far from uniform."""
    layout = packed_layout(sequences, delta=delta, unmeasured=unmeasured)
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(layout.total, heads, size, generator=generator, dtype=torch.float64)
    key = torch.randn(layout.total, kv_heads, size, generator=generator, dtype=torch.float64)
    return Case((2 * query).to(dtype), key.to(dtype), layout, size**-0.5)
