"""Inputs for the tests of FCI: random queries and keys over sequences cut into steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from marsrl_verl.attention.layout import OUTSIDE, StepLayout, build_layout


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


def padded_layout(
    rows: list[list[int]], *, width: int, delta: int, left: bool = False, unmeasured: tuple[int, ...] = (0, 1)
) -> StepLayout:
    """Rows of equal width, padded on the right or on the left. `rows` holds the step lengths of each."""
    ids = torch.full((len(rows), width), OUTSIDE)
    for row, lengths in enumerate(rows):
        steps = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        start = width - len(steps) if left else 0
        ids[row, start : start + len(steps)] = steps
    return build_layout(ids, ~torch.isin(ids, torch.tensor((OUTSIDE, *unmeasured))), delta=delta)


def random_case(
    sequences: list[list[int]], *, delta: int = 2, unmeasured: tuple[int, ...] = (0, 1), **shape: Any
) -> Case:
    """A packed row of sequences."""
    return case_of(packed_layout(sequences, delta=delta, unmeasured=unmeasured), **shape)


def case_of(
    layout: StepLayout,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """Normal queries and keys, sharp enough that attention is far from uniform; gaps have them too."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(layout.total, heads, size, generator=generator, dtype=torch.float64)
    key = torch.randn(layout.total, kv_heads, size, generator=generator, dtype=torch.float64)
    return Case((2 * query).to(dtype), key.to(dtype), layout, size**-0.5)
