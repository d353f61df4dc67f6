"""Shares with their counts: what the sanity checks of toy tasks are told by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """Hits among tries."""

    label: str
    hits: int
    tries: int

    @property
    def share(self) -> float:
        """Of hits; NaN without tries."""
        return self.hits / self.tries if self.tries else float("nan")


def show(figures: Sequence[Figure]) -> str:
    """The figures as a text table."""
    return "\n".join(f"{one.label:56}{one.share:7.3f}  of {one.tries:,}" for one in figures)
