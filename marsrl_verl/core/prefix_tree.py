"""Sequences with common beginnings as a tree in which every shared token occurs once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64] | NDArray[np.int32]
Cost = Callable[[Sequence[int]], int]
"""Places of several trees, from their sizes in nodes."""
packed_cost: Cost = sum
"""Cost of trees that stand end to end."""
Joins = Callable[[int, int, int], bool]
"""Decides if a sequence joins the tree before it, from the tree's size in nodes, the sequence's length and
the length that they have in common; otherwise it begins a tree of its own."""


def always_joins(size: int, length: int, common: int) -> bool:
    """Shares every common beginning."""
    return True


def joins_where_cheaper(hidden_size: int) -> Joins:
    """Rule for attention with a dense mask, which computes every pair of a tree's tokens, seen or not: a
    sequence joins if that is less work than a tree of its own.

    With hidden size d and a feed-forward layer four times as wide, a layer takes 24 d² operations for a token
    and 4 d for a pair, so a tree of N tokens costs as N + N² / 6d.
    """

    def joins(size: int, length: int, common: int) -> bool:
        fresh = length - common
        together = fresh + ((size + fresh) ** 2 - size**2) / (6 * hidden_size)
        return together <= length + length**2 / (6 * hidden_size)

    return joins


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The prefix tree (trie) of R sequences, with N nodes in preorder: a node's descendants follow it, and
    its ancestors are the tokens that precede it in every sequence that passes through it."""

    tokens: Tokens
    """(N,) the token of each node."""
    parents: Tokens
    """(N,) the node of the token before; -1 for a first token."""
    positions: Tokens
    """(N,) the token's position in its sequences."""
    ends: Tokens
    """(N,) one after the node's last descendant: node j precedes or is node i iff j <= i < ends[j]."""
    rows: tuple[Tokens, ...]
    """The nodes of each sequence, token by token, in the order in which the sequences were given."""

    @property
    def roots(self) -> Tokens:
        """(K,) the first nodes, one for each set of sequences that share at least a token."""
        return np.flatnonzero(self.parents < 0)


def prefix_order(rows: Sequence[Tokens]) -> list[int]:
    """Indices of the sequences in the order of their tokens, so that common beginnings are neighbours. Raises
    ValueError: a number is no token id."""
    for row in rows:
        if len(row) and not 0 <= int(row.min()) <= int(row.max()) < 2**32:
            raise ValueError(
                f"token ids are from 0 to 2**32 - 1, found {int(row.min())} to {int(row.max())} in a sequence"
            )
    # Big-endian bytes compare like the numbers; one comparison of bytes is far quicker than of lists.
    keys = [row.astype(">u4").tobytes() for row in rows]
    return sorted(range(len(rows)), key=lambda index: (keys[index], index))


def common_prefix(first: Tokens, second: Tokens) -> int:
    """Number of tokens that two sequences have in common at their beginning."""
    shorter = min(len(first), len(second))
    differs = np.flatnonzero(first[:shorter] != second[:shorter])
    return int(differs[0]) if len(differs) else shorter


def shared_with_previous(rows: Sequence[Tokens], order: Sequence[int]) -> list[int]:
    """Length of the beginning that each sequence in `order` has in common with the one before, 0 for the
    first. In `prefix_order` their sum is the number of tokens that need not be computed."""
    common = [common_prefix(rows[before], rows[this]) for before, this in pairwise(order)]
    return [0, *common][: len(order)]


def distinct_tokens(sequences: Sequence[Sequence[int] | Tokens]) -> int:
    """Nodes of the sequences' prefix tree: tokens that stand after a beginning which no other sequence has,
    or the first of those that have it. Linear in the number of tokens, but for sorting."""
    rows = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    return sum(map(len, rows)) - sum(shared_with_previous(rows, prefix_order(rows)))


def build_prefix_tree(rows: Sequence[Tokens], joins: Joins = always_joins) -> PrefixTree:
    """The prefix tree of sequences of at least one token each. Time and memory are linear in their tokens.
    `joins` says which sequences share a tree; beginnings that two trees have in common are in both. Raises
    ValueError: there is no sequence, or an empty one."""
    if not rows or any(len(row) == 0 for row in rows):
        raise ValueError("a prefix tree needs at least one sequence, each of at least one token")
    order = prefix_order(rows)
    shared = _shared_in_trees(rows, order, joins)
    total = sum(len(rows[index]) for index in order) - sum(shared)
    tokens, parents, positions, ends = (np.zeros(total, dtype=np.int64) for _ in range(4))
    nodes: list[Tokens] = [np.zeros(0, dtype=np.int64)] * len(rows)
    path, count = np.zeros(0, dtype=np.int64), 0
    for index, common in zip(order, shared, strict=True):
        row = np.asarray(rows[index])
        fresh = np.arange(count, count + len(row) - common)
        ends[path[common:]] = count  # the branch that is left here is complete
        path = np.concatenate([path[:common], fresh])
        tokens[fresh], positions[fresh] = row[common:], np.arange(common, len(row))
        parents[fresh] = np.concatenate([[-1], path])[common : len(row)]
        nodes[index] = path
        count += len(fresh)
    ends[path] = count
    return PrefixTree(tokens, parents, positions, ends, tuple(nodes))


def _shared_in_trees(rows: Sequence[Tokens], order: Sequence[int], joins: Joins) -> list[int]:
    """Same as `shared_with_previous`, but 0 where a tree begins."""
    found, size = [], 0
    for index, common in zip(order, shared_with_previous(rows, order), strict=True):
        length = len(rows[index])
        reused = common if common and joins(size, length, common) else 0
        size = size + length - reused if reused else length
        found.append(reused)
    return found


def shelve(tree_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Place trees in rows as long as the largest one, several to a row where they fit (best fit, the largest
    first): (row, first place) of each."""
    width = max(tree_sizes)
    places = [(0, 0)] * len(tree_sizes)
    # (free places, row), sorted, so that the tightest row that fits is found at once.
    open_rows: list[tuple[int, int]] = []
    rows = 0
    for tree in sorted(range(len(tree_sizes)), key=lambda one: -tree_sizes[one]):
        size = tree_sizes[tree]
        position = bisect_left(open_rows, (size, 0))
        if position < len(open_rows):
            free, row = open_rows.pop(position)
        else:
            free, row, rows = width, rows, rows + 1
        places[tree] = (row, width - free)
        insort(open_rows, (free - size, row))
    return places


def padded_cost(tree_sizes: Sequence[int]) -> int:
    """Places of several trees in rows of one length."""
    return (1 + max(row for row, _ in shelve(tree_sizes))) * max(tree_sizes)


def split_rows(
    rows: Sequence[Tokens], limit: int, *, cost: Cost = packed_cost, joins: Joins = always_joins
) -> list[list[int]]:
    """Cuts sequences into parts of at most `limit` places that share as much as they can: indices of `rows`,
    every one once.

    Neighbours in `prefix_order` stay together; a tree over the limit is cut, and its beginning is then in
    both parts. A sequence longer than the limit is a part of its own.
    """
    order = prefix_order(rows)
    parts: list[list[int]] = []
    sizes: list[int] = []
    for index, common in zip(order, shared_with_previous(rows, order), strict=True):
        length = len(rows[index])
        joined = parts and common and joins(sizes[-1], length, common)
        grown = [*sizes[:-1], sizes[-1] + length - common] if joined else [*sizes, length]
        if parts and cost(grown) <= limit:
            parts[-1].append(index)
            sizes = grown
        else:
            parts.append([index])
            sizes = [length]
    return parts


def part_cost(rows: Sequence[Tokens], *, cost: Cost = packed_cost, joins: Joins = always_joins) -> int:
    """Places that the trees of these sequences take."""
    order = prefix_order(rows)
    sizes: list[int] = []
    for index, common in zip(order, _shared_in_trees(rows, order, joins), strict=True):
        if common:
            sizes[-1] += len(rows[index]) - common
        else:
            sizes.append(len(rows[index]))
    return cost(sizes)


def halve_until(parts: Sequence[list[int]], least: int, fits: Callable[[list[int]], bool]) -> list[list[int]]:
    """Cuts the part with most sequences in two until there are at least `least` parts.

    It is cut in the middle, or behind it, where its last sequences fit: those that begin a part anew may join
    other trees than before and take more room. A part of one sequence is never rejected.

    Raises:
        ValueError: there are fewer sequences than `least`.
    """
    result, count = list(parts), sum(map(len, parts))
    if least > count:
        raise ValueError(f"{count} sequences cannot be cut into {least} parts")
    while len(result) < least:
        place = max(range(len(result)), key=lambda number: len(result[number]))
        part = result[place]
        last = len(part) - 1
        cut = next((at for at in range(len(part) // 2, last) if fits(part[at:])), last)
        result[place : place + 1] = [part[:cut], part[cut:]]
    return result
