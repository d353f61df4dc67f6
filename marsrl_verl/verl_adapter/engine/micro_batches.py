"""verl's cut of a rank's rows into micro-batches, in less time.

verl calls Karmarkar and Karp's method for ever more parts until none of them has too many tokens, and then
selects the rows of each part. With the rows of a published step that takes up to a minute of Python on every
rank while its GPU waits (`benchmarks/micro_batches.py`). The micro-batches are the same.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections.abc import Sequence

import torch
from tensordict import TensorDict
from verl.utils import seqlen_balancing, tensordict_utils

_Part = tuple[int, int, list[int]]
"""Sum of the values, number of items, and for each item its index and its value, one after the other."""
_State = tuple[int, "_LargestFirst", list[_Part]]
"""Minus its spread, its largest part, and its parts that are not empty, the smallest first."""


def karmarkar_karp(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """verl's `karmarkar_karp` to the last item, ties included.

    Upstream behaviour: states are objects whose `k` parts, empty ones too, are sorted in Python at each of
    the n merges. Here a state holds only those of its parts that are not empty, as tuples that the
    interpreter compares; items that were not merged yet wait in a sorted list; and a single item, which takes
    part in nearly every merge, is put where it belongs by bisection.
    """
    count = k_partitions
    items: list[_Part] = [(value, 1, [index, value]) for index, value in enumerate(seqlen_list)]
    items.sort()
    states: list[_State] = []
    if equal_size:
        if len(items) % count:
            raise AssertionError(f"{len(items)} % {count} != 0")
        states = [_state(items[start : start + count], count) for start in range(0, len(items), count)]
        heapq.heapify(states)
        items = []
    top = _take(states, items, count)
    while states or items:
        second = _take(states, items, count)
        top = _state(_merge(top[-1], second[-1], count), count)
        if (states and states[0] < top) or (items and _item_first(items[-1], top, count)):
            heapq.heappush(states, top)
            top = _take(states, items, count)
    parts = top[-1][::-1]
    return [part[2][::2] for part in parts] + [[] for _ in range(count - len(parts))]


class _LargestFirst:
    """The order of verl's heap where spreads are equal: the state with the larger first part comes first."""

    __slots__ = ("part",)

    def __init__(self, part: _Part) -> None:
        self.part = part

    def __lt__(self, other: _LargestFirst) -> bool:
        return self.part > other.part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LargestFirst) and self.part == other.part


def _state(parts: list[_Part], count: int) -> _State:
    """A state as an entry of the heap, the largest spread first; `count` is that of all parts."""
    least = parts[0][0] if len(parts) == count else 0
    return least - parts[-1][0], _LargestFirst(parts[-1]), parts


def _take(states: list[_State], items: list[_Part], count: int) -> _State:
    """Removes the state with the largest spread, one of many parts or a single item."""
    if items and (not states or _item_first(items[-1], states[0], count)):
        return _state([items.pop()], count)
    return heapq.heappop(states)


def _item_first(item: _Part, state: _State, count: int) -> bool:
    """True if a single item comes before a state in the heap's order."""
    spread = item[0] if count > 1 else 0
    return -spread < state[0] if -spread != state[0] else item > state[1].part


def _merge(first: list[_Part], second: list[_Part], count: int) -> list[_Part]:
    """The largest part of one with the smallest of the other; empty parts are the smallest. Takes the lists
    of both."""
    if len(second) == 1:
        return _with_item(first, second[0], count, item_last=True)
    if len(first) == 1:
        return _with_item(second, first[0], count, item_last=False)
    first.reverse()
    alone = max(0, count - len(second))
    parts = first[:alone]
    for place, one in enumerate(second, start=count - len(second)):
        parts.append(_joined(first[place], one) if place < len(first) else one)
    parts.sort()
    return parts


def _with_item(parts: list[_Part], item: _Part, count: int, *, item_last: bool) -> list[_Part]:
    if len(parts) == count:
        least = parts.pop(0)
        item = _joined(least, item) if item_last else _joined(item, least)
    insort(parts, item)
    return parts


def _joined(one: _Part, other: _Part) -> _Part:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def index_select_tensor_dict(batch: TensorDict, indices: torch.Tensor | list[int]) -> TensorDict:
    """verl's `index_select_tensor_dict`.

    Upstream behaviour: each jagged column is taken apart into all of its rows to select some of them, so that
    cutting n rows into k micro-batches makes n * k tensors for each column.
    """
    places = torch.as_tensor(indices)
    if batch is None or places.dim() != 1:
        return _upstream_index_select(batch, indices)
    chosen = places.tolist()
    jagged = {name: one for name, one in batch.items() if isinstance(one, torch.Tensor) and one.is_nested}
    if any(one.layout != torch.jagged or one.dim() != 2 for one in jagged.values()):
        return _upstream_index_select(batch, indices)
    rest = batch.exclude(*jagged)
    selected = _upstream_index_select(rest, places)
    # In the order of the columns, which upstream keeps.
    columns = {
        name: _select_rows(jagged[name], chosen) if name in jagged else selected.get(name)
        for name in batch.keys()  # noqa: SIM118  (a TensorDict iterates over rows)
    }
    return TensorDict(columns, batch_size=[len(chosen)])


def _select_rows(column: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Rows of a jagged column (n, *), copied."""
    values, offsets = column.values(), column.offsets()  # type: ignore[attr-defined]
    ends = offsets.tolist()
    parts = [values[ends[row] : ends[row + 1]] for row in rows]
    lengths = [len(part) for part in parts]
    chosen = torch.tensor([0, *itertools.accumulate(lengths)], dtype=offsets.dtype, device=offsets.device)
    # Where the longest is not known, torch pads a column to all of its tokens in one row.
    return torch.nested.nested_tensor_from_jagged(
        torch.cat(parts), chosen, min_seqlen=min(lengths), max_seqlen=max(lengths)
    )


_upstream_index_select = tensordict_utils.index_select_tensor_dict


def use_fast_micro_batches() -> None:
    """Has verl cut micro-batches with the functions above, in this process."""
    seqlen_balancing.karmarkar_karp = karmarkar_karp
    tensordict_utils.index_select_tensor_dict = index_select_tensor_dict
