"""How verl cuts a rank's rows into micro-batches, in less time.

verl asks Karmarkar and Karp's method for ever more parts until none of them has too many tokens. With the
rows of a published step, thousands, that takes minutes of Python on every rank while its GPU waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from verl.utils import seqlen_balancing

_Part = tuple[int, int, list[int]]
"""Sum of the values, number of items, and for each item its index and its value, one after the other."""


def karmarkar_karp(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """verl's `karmarkar_karp` to the last item, ties included.

    Upstream behaviour: states are objects whose `k` parts are compared by a method in Python. Here a part is
    a tuple, compared by the interpreter, and a state holds only those of its parts that are not empty.

    Args:
        seqlen_list: a value for each item.
        k_partitions: how many parts are wanted.
        equal_size: whether all parts have the same number of items.

    Returns:
        `k_partitions` lists of indices with sums that are near each other.
    """
    ordered = sorted((length, index) for index, length in enumerate(seqlen_list))
    size = k_partitions if equal_size else 1
    if len(ordered) % size:
        raise AssertionError(f"{len(ordered)} % {size} != 0")
    states = []
    for start in range(0, len(ordered), size):
        parts: list[_Part] = [(value, 1, [index, value]) for value, index in ordered[start : start + size]]
        parts.sort(reverse=True)
        states.append(_keyed(parts, k_partitions))
    heapq.heapify(states)
    while len(states) > 1:
        first, second = heapq.heappop(states)[-1], heapq.heappop(states)[-1]
        heapq.heappush(states, _keyed(_merge(first, second, k_partitions), k_partitions))
    parts = states[0][-1]
    return [part[2][::2] for part in parts] + [[] for _ in range(k_partitions - len(parts))]


def _merge(first: list[_Part], second: list[_Part], count: int) -> list[_Part]:
    """The largest part of one with the smallest of the other; empty parts are the smallest."""
    alone = max(0, count - len(second))
    parts = first[:alone]
    for offset, one in enumerate(reversed(second)):
        place = count - len(second) + offset
        if place < len(first):
            other = first[place]
            parts.append((other[0] + one[0], other[1] + one[1], other[2] + one[2]))
        else:
            parts.append(one)
    parts.sort(reverse=True)
    return parts


class _LargestFirst:
    """The order of verl's heap where spreads are equal: the state with the larger first part comes first."""

    __slots__ = ("part",)

    def __init__(self, part: _Part) -> None:
        self.part = part

    def __lt__(self, other: _LargestFirst) -> bool:
        return self.part > other.part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LargestFirst) and self.part == other.part


def _keyed(parts: list[_Part], count: int) -> tuple[int, _LargestFirst, list[_Part]]:
    """A state as an entry of the heap: the largest spread first."""
    least = parts[-1][0] if len(parts) == count else 0
    return least - parts[0][0], _LargestFirst(parts[0]), parts


def use_fast_partitions() -> None:
    """Have verl cut micro-batches with the function above, in this process."""
    seqlen_balancing.karmarkar_karp = karmarkar_karp
