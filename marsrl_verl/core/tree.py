"""A tree of responses that share beginnings: values and advantages of its segments, as flat arrays.

Branching cuts a response into segments. A node of the tree is a segment of tokens; a leaf is the last
segment of a finished response. The root stands for the problem and has no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROOT = 0


@dataclass(frozen=True, slots=True)
class Path:
    """One response: where its text comes from and what it is worth."""

    name: str
    length: int
    """Tokens of the whole response, the shared beginning included."""
    reward: float
    parent: str | None = None
    """The path whose beginning it continues; None: it was sampled from the prompt."""
    branch: int = 0
    """Tokens of the parent that it starts with."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Segments of all paths of one problem. Node 0 is the root; a parent has a smaller number than its
    children."""

    parent: npt.NDArray[np.int64]
    """(M,); -1 for the root."""
    start: npt.NDArray[np.int64]
    """(M,) first token of the segment in its path's response."""
    end: npt.NDArray[np.int64]
    """(M,) one past its last token."""
    owner: npt.NDArray[np.int64]
    """(M,) number of the path that sampled the segment; -1 for the root."""
    leaf: npt.NDArray[np.int64]
    """(P,) the node in which each path ends."""
    reward: npt.NDArray[np.float64]
    """(P,) reward of each path."""
    names: tuple[str, ...]
    """(P,) names of the paths."""

    def segments_of(self, path: int) -> list[tuple[int, int]]:
        """(end, node) of each segment from the first one to the path's leaf; ends rise to its length."""
        segments, node = [], int(self.leaf[path])
        while node != ROOT:
            segments.append((int(self.end[node]), node))
            node = int(self.parent[node])
        return segments[::-1]


def build_tree(paths: Sequence[Path]) -> Tree:
    """Cuts paths at their branch points and hangs them together.

    Args:
        paths: each after its parent. Several may leave a parent at one token: that is one cut.

    Raises:
        ValueError: a parent is unknown, or a branch point lies outside of it.
    """
    number = {path.name: at for at, path in enumerate(paths)}
    if len(number) != len(paths):
        raise ValueError("two paths of a tree have one name")
    cuts: list[set[int]] = [set() for _ in paths]
    for at, path in enumerate(paths):
        if path.parent is None:
            if path.branch:
                raise ValueError(f"path {path.name} has no parent, but starts after {path.branch} tokens")
            continue
        above = number.get(path.parent)
        if above is None or above >= at:
            raise ValueError(f"path {path.name}: its parent {path.parent!r} does not come before it")
        if not paths[above].branch <= path.branch <= paths[above].length or path.branch > path.length:
            raise ValueError(
                f"path {path.name} of {path.length} tokens starts after {path.branch} tokens of "
                f"{path.parent}, which sampled tokens {paths[above].branch} to {paths[above].length}"
            )
        cuts[above].add(path.branch)
    parent, start, end, owner = [-1], [0], [0], [-1]
    after: list[dict[int, int]] = []  # by path: cut -> the node that ends there
    leaf = []
    for at, path in enumerate(paths):
        node = ROOT if path.parent is None else after[number[path.parent]][path.branch]
        ending, low = {path.branch: node}, path.branch
        # A cut at the very end still leaves a leaf of its own, so that leaves and paths are as many.
        for high in [*sorted(cut for cut in cuts[at] if cut > path.branch), path.length]:
            parent.append(node)
            start.append(low)
            end.append(high)
            owner.append(at)
            node, low = len(parent) - 1, high
            ending.setdefault(high, node)
        after.append(ending)
        leaf.append(node)
    return Tree(
        np.array(parent),
        np.array(start),
        np.array(end),
        np.array(owner),
        np.array(leaf, dtype=np.int64),
        np.array([path.reward for path in paths], dtype=np.float64),
        tuple(number),
    )


def leaf_counts(tree: Tree) -> npt.NDArray[np.int64]:
    """(M,) |L(s)|: the leaves below each node, itself included."""
    return subtree_sums(tree, np.ones(len(tree.leaf), dtype=np.int64))


def values(tree: Tree) -> npt.NDArray[np.float64]:
    """(M,) V(s): the mean reward over the leaves below each node (arXiv 2509.26628, eq. 2)."""
    return subtree_sums(tree, tree.reward) / leaf_counts(tree)


def tree_advantages(tree: Tree) -> npt.NDArray[np.float64]:
    """(M,) the advantage of every segment (arXiv 2509.26628, eq. 3), 0 for the root:

    A(s) = ((V(s) - V(root)) + (V(s) - V(parent(s)))) / sqrt(|L(s)|)

    The root of |L| makes up for a shared segment being in |L| training rows.
    """
    value = values(tree)
    above = np.where(tree.parent < 0, ROOT, tree.parent)
    return ((value - value[ROOT]) + (value - value[above])) / np.sqrt(leaf_counts(tree))


def subtree_sums(tree: Tree, at_leaves: npt.NDArray) -> npt.NDArray:
    """(M,) sums over the leaves below each node; children come after parents."""
    total = np.zeros(len(tree.parent), dtype=at_leaves.dtype)
    np.add.at(total, tree.leaf, at_leaves)
    for node in range(len(tree.parent) - 1, ROOT, -1):
        total[tree.parent[node]] += total[node]
    return total
