"""The nodes of a group's tree, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NODE = "tree_node"
"""Annotation: the part of the group's tree that a token is in. Trajectories that share tokens have the same
numbers there; a part ends where a trajectory has read results."""


def node_column(parts: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """(T,) the node of each token.

    Args:
        parts: (end, node) of consecutive parts; the last end is T.
    """
    ends = np.array([end for end, _ in parts], dtype=np.int64)
    return np.repeat(np.array([node for _, node in parts], dtype=np.int32), np.diff(ends, prepend=0))
