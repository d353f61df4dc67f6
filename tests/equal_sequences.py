"""Sequences that are the same in every field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from marsrl_verl.core.sequence import Sequence


def equal_sequences(first: Sequence, second: Sequence) -> bool:
    """Whether two sequences are the same, token by token and column by column."""
    one, other = first.to_plain(), second.to_plain()
    if one["annotations"].keys() != other["annotations"].keys():
        return False
    pairs: Iterable[tuple[Any, Any]] = [
        *((one[name], other[name]) for name in one if name != "annotations"),
        *((one["annotations"][name], other["annotations"][name]) for name in one["annotations"]),
    ]
    return all(
        np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.floating))
        if isinstance(a, np.ndarray)
        else a == b
        for a, b in pairs
    )
