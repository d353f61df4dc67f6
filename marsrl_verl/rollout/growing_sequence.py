"""A sequence to which a round adds: what the policy samples, and what others say."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.sequence import TURN, LogProbs, Mask, Sequence, TokenIds


class Part(NamedTuple):
    """Tokens that this round added."""

    ids: TokenIds
    log_probs: LogProbs
    mask: Mask
    version: int | None
    """None: no policy sampled them."""
    turn: int

    @classmethod
    def of_context(cls, ids: TokenIds) -> Part:
        """Tokens that no policy sampled."""
        return cls(ids, np.zeros(len(ids), dtype=np.float32), np.zeros(len(ids), dtype=np.uint8), None, -1)


class GrowingSequence:
    """The sequence as the round found it (`begun`), and the parts that were added since."""

    def __init__(self, begun: Sequence) -> None:
        self.begun = begun
        self._parts: list[Part] = []
        self._added = 0

    def __len__(self) -> int:
        """Response tokens."""
        return len(self.begun) + self._added

    def copy(self) -> GrowingSequence:
        """Another one that grows on its own from here."""
        twin = GrowingSequence(self.begun)
        twin._parts, twin._added = list(self._parts), self._added
        return twin

    def add(self, part: Part) -> None:
        """Appends a part; an empty one is left out."""
        if len(part.ids):
            self._parts.append(part)
            self._added += len(part.ids)

    def cut(self, tokens: int) -> None:
        """Keeps the first `tokens` of the response, not fewer than the round began with."""
        while self._parts and len(self) > tokens:
            last = self._parts.pop()
            self._added -= len(last.ids)
            remaining = max(0, tokens - len(self))
            columns = last.ids[:remaining], last.log_probs[:remaining], last.mask[:remaining]
            self.add(Part(*columns, last.version, last.turn))

    def sampled_after(self, position: int) -> int:
        """Tokens of this round behind a position of the response that the policy sampled."""
        count, end = 0, len(self)
        for part in reversed(self._parts):
            if part.version is not None:
                count += max(0, end - max(position, end - len(part.ids)))
            end -= len(part.ids)
        return count

    def input_ids(self) -> TokenIds:
        """(P + T,) prompt and response."""
        return np.concatenate([self.begun.prompt_ids, self.response_ids()])

    def response_ids(self) -> TokenIds:
        """(T,) the response."""
        return np.concatenate([self.begun.response_ids, *(one.ids for one in self._parts)])

    def sequence(self) -> Sequence:
        """Returns the sequence as it is now. The tokens that this round added are parts of their own in
        `versions`, one of length 0 if there are none."""
        sequence, parts = self.begun, self._versioned()
        for version, same in itertools.groupby(parts, key=lambda part: part.version):
            some = list(same)
            sequence = sequence.extend(
                np.concatenate([one.ids for one in some]),
                np.concatenate([one.log_probs for one in some]),
                version,  # type: ignore[arg-type]  # none is None any more
                np.concatenate([one.mask for one in some]),
            )
        if not parts:
            sequence = sequence.extend((), (), sequence.version)
        if TURN in self.begun.annotations or any(one.turn >= 0 for one in parts):
            sequence.annotations[TURN] = self._turns()
        return sequence

    def _versioned(self) -> list[Part]:
        """The parts, where no policy sampled one with the version before it (at the beginning: after it)."""
        sampled = (one.version for one in self._parts if one.version is not None)
        last = next(sampled, self.begun.version)
        found = []
        for one in self._parts:
            last = last if one.version is None else one.version
            found.append(one._replace(version=last))
        return found

    def _turns(self) -> NDArray[np.int16]:
        before = self.begun.annotations.get(TURN, np.full(len(self.begun), -1, dtype=np.int16))
        return np.concatenate(
            [before, *(np.full(len(one.ids), one.turn, dtype=np.int16) for one in self._parts)]
        )
