"""Sample on from given tokens, some of which no other token sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PREFILL_TOKENS = 16_384
"""Most tokens of a batch in one forward pass over given tokens: bounds the memory of activations."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Given tokens, and how they are sampled on from."""

    ids: tuple[int, ...]
    """At least one token."""
    most: int
    """Most tokens that may follow."""
    seed: int
    """Of the random numbers of this row alone: they do not depend on its batch."""
    hidden: tuple[int, int] = (0, 0)
    """First and one past the last of the tokens that no other token sees. The last one of `ids` stays."""

    def __post_init__(self) -> None:
        start, stop = self.hidden
        if self.most < 1:
            raise ValueError(f"at most {self.most} tokens may follow, expected 1 or more")
        if not 0 <= start <= stop < len(self.ids):
            raise ValueError(
                f"tokens {start} to {stop} are to be hidden in {len(self.ids)} tokens, whose last one stays"
            )


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are drawn; the model's generation config has no say in it."""

    temperature: float = 1.0
    top_p: float = 1.0
    batch_size: int = 64
    """Rows sampled at once."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, expected above 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, expected above 0 and at most 1")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}, expected 1 or more")


def sample_rest(
    model: Any,
    beginnings: Sequence[Beginning],
    decoding: Decoding,
    end_ids: frozenset[int],
    progress: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """What follows each beginning, up to and with an end token, or up to its limit.

    Rows of similar length share a batch. A row's random numbers are its own, so that other batches give the
    same tokens, unless the rounding of the model's arithmetic tips a draw.

    Args:
        model: a transformers model with sdpa attention, in whose cache columns can be hidden.
        beginnings: in any order.
        decoding: how tokens are drawn.
        end_ids: any of them ends a row.
        progress: told after each batch how many rows are done.
    """
    # The longest come first: what does not fit into memory shows at once.
    order = sorted(range(len(beginnings)), key=lambda number: -len(beginnings[number].ids))
    found: list[list[int]] = [[] for _ in beginnings]
    for first in range(0, len(order), decoding.batch_size):
        numbers = order[first : first + decoding.batch_size]
        batch = _sample_batch(model, [beginnings[number] for number in numbers], decoding, end_ids)
        for number, ids in zip(numbers, batch, strict=True):
            found[number] = ids
        if progress is not None:
            progress(first + len(numbers))
    return found


@torch.no_grad()
def _sample_batch(
    model: Any, rows: Sequence[Beginning], decoding: Decoding, end_ids: frozenset[int]
) -> list[list[int]]:
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    most = max(row.most for row in rows)
    width = max(len(row.ids) for row in rows)
    tokens, mask, positions = (tensor.to(model.device) for tensor in _padded(rows, width, most))
    uniforms = _uniforms(rows, most).to(model.device)
    piece = max(1, PREFILL_TOKENS // len(rows))
    for start in range(0, width, piece):
        stop = min(start + piece, width)
        logits = _forward(model, cache, tokens[:, start:stop], mask[:, :stop], positions[:, start:stop])
    at = positions[:, -1:]
    found: list[list[int]] = [[] for _ in rows]
    ended = [False] * len(rows)
    here = list(range(len(rows)))
    """The rows that are in the batch still."""
    for drawn in range(most):
        chosen = draw(logits, uniforms[:, drawn], decoding)
        for row, token in zip(here, chosen.tolist(), strict=True):
            if not ended[row]:
                found[row].append(token)
                ended[row] = token in end_ids or len(found[row]) == rows[row].most
        stay = [place for place, row in enumerate(here) if not ended[row]]
        if not stay:
            break
        if 2 * len(stay) <= len(here):
            # Ended rows would cost as much as the others. Taking rows out copies the cache, so not for each.
            index = torch.tensor(stay, device=model.device)
            cache.batch_select_indices(index)
            chosen, mask, at, uniforms = chosen[index], mask[index], at[index], uniforms[index]
            here = [here[place] for place in stay]
        width, at = width + 1, at + 1
        logits = _forward(model, cache, chosen[:, None], mask[:, :width], at)
    return found


def _forward(
    model: Any, cache: Any, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """(B, V) logits after the last of these tokens; their keys and values join the cache."""
    output = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return output.logits[:, -1]


def _padded(
    rows: Sequence[Beginning], width: int, most: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens and positions (B, W), padded on the left, and which columns are seen (B, W + most)."""
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width + most, dtype=torch.long)
    for number, row in enumerate(rows):
        shift = width - len(row.ids)
        start, stop = row.hidden
        tokens[number, shift:] = torch.tensor(row.ids)
        mask[number, shift:] = 1
        mask[number, shift + start : shift + stop] = 0
    # Positions count hidden tokens too: what follows stays where it was.
    lengths = torch.tensor([len(row.ids) for row in rows])
    positions = (torch.arange(width)[None] - (width - lengths)[:, None]).clamp(min=0)
    return tokens, mask, positions


def _uniforms(rows: Sequence[Beginning], most: int) -> torch.Tensor:
    """(B, most) float32 from [0, 1); a row's numbers follow from its seed and its limit."""
    uniforms = torch.zeros(len(rows), most)
    for number, row in enumerate(rows):
        uniforms[number, : row.most] = torch.rand(row.most, generator=torch.Generator().manual_seed(row.seed))
    return uniforms


def draw(logits: torch.Tensor, uniform: torch.Tensor, decoding: Decoding) -> torch.Tensor:
    """(B,) ids: the first at which the summed probabilities exceed the row's random number.

    Args:
        logits: (B, V).
        uniform: (B,) float32 from [0, 1).
        decoding: temperature and top-p; the token that crosses top-p is kept.
    """
    # Sums over a whole vocabulary are too coarse in float32.
    probabilities = (logits.float() / decoding.temperature).softmax(-1).double()
    if decoding.top_p < 1:
        ordered, ids = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        nucleus = ordered.masked_fill(before >= decoding.top_p, 0.0)
        nucleus[:, 0] = ordered[:, 0]  # whatever the sum's rounding says
        probabilities = torch.zeros_like(probabilities).scatter(-1, ids, nucleus)
    sums = probabilities.cumsum(-1)
    goal = uniform.double()[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, goal, right=True)[:, 0]
