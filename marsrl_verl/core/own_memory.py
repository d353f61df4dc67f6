"""Arrays that outlive their step, in memory of their own.

The results of a round are read in place, out of memory that others manage (Ray's object store): a view keeps
its whole result from being freed. That is right within a step, whose end drops it; what is kept longer is
copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.sequence import Plain, Sequence
from marsrl_verl.core.trajectory import Trajectory


def is_owned(array: NDArray[Any]) -> bool:
    """True if numpy owns the array's memory, or that of the array it is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base is None


class Copies:
    """Copies of what is not owned; arrays that several sequences share (prompts) stay shared."""

    def __init__(self) -> None:
        # With the original, whose place in memory is not used again as long as it is there.
        self._made: dict[Any, tuple[NDArray[Any], NDArray[Any]]] = {}

    def array(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself where it is owned, or its copy."""
        if is_owned(array):
            return array
        place = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str)
        return self._made.setdefault(place, (array, array.copy()))[1]

    def plain(self, value: Plain) -> Plain:
        """Plain data with its arrays owned."""
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, dict):
            return {name: self.plain(one) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.plain(one) for one in value)
        return value

    def sequence(self, sequence: Sequence) -> Sequence:
        """A sequence with its arrays owned."""
        return replace(
            sequence,
            prompt_ids=self.array(sequence.prompt_ids),
            response_ids=self.array(sequence.response_ids),
            rollout_log_probs=self.array(sequence.rollout_log_probs),
            response_mask=self.array(sequence.response_mask),
            annotations=self.plain(sequence.annotations),
        )

    def take(self, trajectories: Iterable[Trajectory]) -> None:
        """Gives trajectories arrays of their own, in place."""
        for one in trajectories:
            one.sequences = [self.sequence(sequence) for sequence in one.sequences]
            one.state, one.events = self.plain(one.state), self.plain(one.events)
