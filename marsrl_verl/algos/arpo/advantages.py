"""Advantages of tokens that several trajectories of a group share (ARPO, arXiv 2507.19849, §3.2).

Rows carry the node of the group's tree for each of their tokens (`NODE`). A token that d rows share is in the
loss d times. With `soft` it has each row's own advantage: where the ratio is 1, its gradients add up to d
times their mean, which is what `hard` gives it in every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.rows import Rows
from marsrl_verl.settings.choices import Choice

NODE = "tree_node"
"""Annotation: the part of the group's tree that a token is in. Trajectories that share tokens have the same
numbers there; a part ends where a trajectory has read results."""


def node_column(parts: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Returns (T,) the node of each token.

    Args:
        parts: (end, node) of consecutive parts; the last end is T.
    """
    ends = np.array([end for end, _ in parts], dtype=np.int64)
    return np.repeat(np.array([node for _, node in parts], dtype=np.int32), np.diff(ends, prepend=0))


class Attribution(Choice):
    """Advantages of shared tokens."""

    SOFT = "soft"
    """Each row's own advantage (the paper's default, used for all of its results)."""
    HARD = "hard"
    """The mean advantage of the rows that share them."""
    SIBLING = "sibling"
    """Mean of the rows below a part of the tree, less that of all rows below the fork that it comes from (at
    the beginning the whole group): the value of a choice counts once, where it was made."""


@dataclass(frozen=True, slots=True)
class _Runs:
    """Consecutive tokens of a row in one node, R in all."""

    row: NDArray[np.int64]
    """(R,)"""
    length: NDArray[np.int64]
    """(R,) tokens."""
    node: NDArray[np.int64]
    """(R,) number of the node among those of the step, from 0."""
    parent: NDArray[np.int64]
    """(R,) node of the previous run of its row; for the first run the node of its group, which has no
    tokens."""
    nodes: int
    """Number of nodes, groups included."""


def token_advantages(
    rows: Rows, values: NDArray[np.float64], attribution: Attribution
) -> NDArray[np.float32]:
    """Returns (N,) the advantage of every token.

    Args:
        rows: the step's.
        values: (B,) advantage of each row in its group, 0 on average
            (`core.credit.advantages.group_relative`).
        attribution: `HARD` or `SIBLING`.
    """
    if not len(rows):
        return np.zeros(0, np.float32)
    runs = _runs(rows)
    # A row passes through a node once, so that its runs there are rows below it.
    rows_below = np.bincount(runs.node, minlength=runs.nodes)
    sums: NDArray[np.float64] = np.bincount(runs.node, values[runs.row], runs.nodes).astype(np.float64)
    means = sums / np.maximum(1, rows_below)
    by_node = means if attribution is Attribution.HARD else _against_siblings(runs, means)
    return np.repeat(by_node[runs.node], runs.length).astype(np.float32)


def _against_siblings(runs: _Runs, means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns each node's mean less that of the last node above it that branches; a group's mean is 0."""
    parent_of = np.full(runs.nodes, -1, dtype=np.int64)
    parent_of[runs.node] = runs.parent
    children = np.bincount(parent_of[parent_of >= 0], minlength=runs.nodes)
    # A row that ends in a node counts as a branch of it, too.
    last = np.append(runs.row[1:] != runs.row[:-1], True)
    ends = np.bincount(runs.node[last], minlength=runs.nodes)
    branches = children + ends > 1
    found = np.zeros(runs.nodes)
    done = parent_of < 0  # the groups
    branches |= done
    while not done.all():  # once for every result on the way to the deepest node
        ready = np.flatnonzero(~done & done[parent_of])
        above = parent_of[ready]
        found[ready] = np.where(
            branches[above], means[ready] - np.where(parent_of[above] < 0, 0.0, means[above]), found[above]
        )
        done[ready] = True
    return found


def _runs(rows: Rows) -> _Runs:
    """Splits the rows' tokens into runs by node."""
    columns = [rows.sequence(row).annotations[NODE] for row in range(len(rows))]
    nodes = np.concatenate(columns).astype(np.int64)
    row_of = rows.row_of_token()
    changes = (nodes[1:] != nodes[:-1]) | (row_of[1:] != row_of[:-1])
    begins = np.flatnonzero(np.append(True, changes))[: len(nodes)]
    row = row_of[begins]
    group = np.array([ref.group for ref in rows.refs], dtype=np.int64)[row]
    length = np.diff(np.append(begins, len(nodes)))
    # Numbers of nodes are a group's own.
    named, node = np.unique(np.stack([group, nodes[begins]]), axis=1, return_inverse=True)
    first = np.append(True, row[1:] != row[:-1])[: len(row)]
    count, groups = named.shape[1], len(rows.groups)
    before = np.append(0, node.ravel()[:-1])[: len(row)]
    return _Runs(row, length, node.ravel(), np.where(first, count + group, before), count + groups)
