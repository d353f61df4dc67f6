"""Assignment of tokens to steps, which FCI needs beside queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

NEVER = 2**30
"""`key_steps` of a token that is not measured: no query is ever so many steps later."""
OUTSIDE = -1
"""`step_ids` of a token that belongs to no sequence (padding)."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Sequences on one axis of N tokens, cut into steps. Padded rows are laid end to end, with gaps between.

    FCI (arXiv 2509.26628, eq. 5 and 6) of step k in one head is the mean over its tokens t of

        c_t = sum_q w_q * A[q, t] * 1[step(q) - step(t) >= delta],    w_q = 1 / |step(q)|

    which is the sum over steps j >= k + delta of the mean attention from j to k. Only these weighted column
    sums are ever computed, never the matrix A.
    """

    starts: tuple[int, ...]
    """First token of every sequence, rising."""
    ends: tuple[int, ...]
    """One past its last token."""
    query_steps: torch.Tensor
    """(N,) int32: the token's step, counted in its sequence from 0 (the prompt); `OUTSIDE` between
    sequences."""
    key_steps: torch.Tensor
    """(N,) int32: the same where the step is measured, else `NEVER`."""
    weights: torch.Tensor
    """(N,) float32: one over the tokens of the token's step."""
    step_of_token: torch.Tensor
    """(N,) int64: running number of the token's step over all sequences; 0 between sequences."""
    token_index: torch.Tensor
    """(M,) int64: the tokens inside sequences, in order."""
    step_lengths: torch.Tensor
    """(S,) int64: tokens of every step over all sequences; sums to M."""
    delta: int
    """Least distance in steps from which a query counts."""

    @property
    def total(self) -> int:
        """Tokens on the axis, gaps included (N)."""
        return int(self.query_steps.numel())

    def to(self, device: torch.device | str) -> StepLayout:
        """The same layout with its tensors on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: one.to(device) for name, one in values.items() if isinstance(one, torch.Tensor)}
        return StepLayout(**values | tensors)


def build_layout(
    step_ids: torch.Tensor,
    measured: torch.Tensor,
    *,
    delta: int,
    sequence_ids: torch.Tensor | None = None,
) -> StepLayout:
    """Lay out padded rows, or one packed row.

    Args:
        step_ids: (B, T) or (N,): the step of each token in its sequence, never falling inside a sequence;
            `OUTSIDE` for padding.
        measured: the same shape, true where the token's step is measured. All tokens of a step agree.
        delta: least distance in steps, at least 1.
        sequence_ids: the same shape: tokens with one number are one sequence, which must be contiguous.
            None: every row of `step_ids` is one sequence.

    Raises:
        ValueError: shapes differ, a sequence is not contiguous, steps fall or a step is measured in part.
    """
    if delta < 1:
        raise ValueError(f"delta is {delta}, expected at least 1")
    if step_ids.shape != measured.shape:
        raise ValueError(f"step_ids has shape {tuple(step_ids.shape)}, measured {tuple(measured.shape)}")
    if sequence_ids is None:
        rows = step_ids if step_ids.dim() == 2 else step_ids[None]
        sequence_ids = torch.arange(rows.shape[0]).repeat_interleave(rows.shape[1])
    steps = step_ids.reshape(-1).cpu().to(torch.int64)
    eligible = measured.reshape(-1).cpu().bool()
    sequences = sequence_ids.reshape(-1).cpu().to(torch.int64)
    if len(sequences) != len(steps):
        raise ValueError(f"{len(steps)} tokens have {len(sequences)} sequence ids")
    index = torch.nonzero(steps != OUTSIDE).flatten()
    if not len(index):
        raise ValueError("no token belongs to a step: every entry of step_ids says padding")
    starts, ends = _spans(sequences, index)
    number, lengths = _numbered_steps(steps, sequences, index)
    step_of_token = torch.zeros_like(steps)
    step_of_token[index] = number
    counts = torch.zeros(len(lengths), dtype=torch.int64).index_add_(0, number, eligible[index].long())
    partly = torch.nonzero((counts != 0) & (counts != lengths)).flatten()
    if len(partly):
        raise ValueError(f"step number {int(partly[0])} is measured for a part of its tokens only")
    weights = torch.zeros(len(steps), dtype=torch.float32)
    weights[index] = 1.0 / lengths[number].float()
    key_steps = torch.where(eligible & (steps != OUTSIDE), steps, torch.tensor(NEVER))
    return StepLayout(
        tuple(starts),
        tuple(ends),
        query_steps=steps.to(torch.int32),
        key_steps=key_steps.to(torch.int32),
        weights=weights,
        step_of_token=step_of_token,
        token_index=index,
        step_lengths=lengths,
        delta=delta,
    ).to(step_ids.device)


def _spans(sequences: torch.Tensor, index: torch.Tensor) -> tuple[list[int], list[int]]:
    owner = sequences[index]
    bounds = [0, *(torch.nonzero(owner[1:] != owner[:-1]).flatten() + 1).tolist(), len(index)]
    begins, stops = bounds[:-1], bounds[1:]
    starts = [int(index[begin]) for begin in begins]
    ends = [int(index[stop - 1]) + 1 for stop in stops]
    seen: set[int] = set()
    for begin, stop, start, end in zip(begins, stops, starts, ends, strict=True):
        name = int(owner[begin])
        if end - start != stop - begin or name in seen:
            raise ValueError(f"sequence {name} is not contiguous: padding or another sequence is inside it")
        seen.add(name)
    return starts, ends


def _numbered_steps(
    steps: torch.Tensor, sequences: torch.Tensor, index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The running number of each token's step and the steps' lengths."""
    inside, owner = steps[index], sequences[index]
    same = owner[1:] == owner[:-1]
    if bool((same & (inside[1:] < inside[:-1])).any()):
        raise ValueError("step_ids fall inside a sequence; steps are numbered from its beginning")
    new = torch.ones(len(index), dtype=torch.bool)
    new[1:] = ~same | (inside[1:] != inside[:-1])
    number = torch.cumsum(new.long(), 0) - 1
    return number, torch.bincount(number)
