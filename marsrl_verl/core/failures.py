"""A failure is data; many of them, round after round, are the fault of who was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from marsrl_verl.core.inert_text import one_line

LEAST_FAILED, LEAST_FAILED_GROUPS = 8, 4
"""Fewer failures than these, or of fewer groups, may be the fault of what was asked (a reference that can't
be read fails its whole group); they add up over rounds."""
MOST_ABSENT = 16
"""Rounds without a source after which its earlier ones say nothing of it any more. A sequential step of many
stages asks a role once in as many rounds."""
_SHOWN_CHARACTERS = 300


@dataclass(slots=True)
class Failures:
    """How often something was asked, and how often it failed."""

    asked: int = 0
    failed: int = 0
    first_error: str = ""
    groups: set[str] = field(default_factory=set)
    """Of the failed ones."""
    rounds: int = 1

    def add(self, group_id: str, error: str | None) -> None:
        """Count one; None: it did not fail."""
        self.asked += 1
        if error is not None:
            self.failed += 1
            self.groups.add(group_id)
            self.first_error = self.first_error or shortened(error)

    def join(self, more: Failures, *, rounds: int = 0) -> None:
        """Count those of the same round, or of further ones, too."""
        self.asked += more.asked
        self.failed += more.failed
        self.groups |= more.groups
        self.first_error = self.first_error or more.first_error
        self.rounds += rounds

    @property
    def many(self) -> bool:
        """Whether what was asked can hardly be at fault."""
        return self.failed >= LEAST_FAILED and len(self.groups) >= LEAST_FAILED_GROUPS


def shortened(error: str) -> str:
    """In one line that fits a message: an error may quote a whole response."""
    line = one_line(error)
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"


class FailedShares:
    """The share that fails, of each source by itself; `limit` tells the highest that may, and is asked when
    something of a source fails."""

    def __init__(self, limit: Callable[[str], float]) -> None:
        self.limit = limit
        self._round: dict[str, Failures] = {}
        self._over: dict[str, Failures] = {}
        """Those of the last rounds of a source, all over its limit."""
        self._absent: dict[str, int] = {}
        """Of these sources, rounds since they were asked."""

    def add(self, source: str, found: Failures) -> None:
        """Count what a part of the round brought."""
        self._round.setdefault(source, Failures()).join(found)

    def end_round(self) -> Iterator[tuple[str, Failures]]:
        """The sources over their limits in this round and in their one before it, with what failed since they
        are. A round without a source says nothing of it; after more than `MOST_ABSENT` it begins anew."""
        ended, self._round = self._round, {}
        for source in list(self._over):
            self._absent[source] = 0 if source in ended else self._absent.get(source, 0) + 1
            if self._absent[source] > MOST_ABSENT:
                del self._over[source], self._absent[source]
        for source, found in ended.items():
            if not found.failed or found.failed <= self.limit(source) * found.asked:
                self._over.pop(source, None)
            elif source not in self._over:
                self._over[source] = found
            else:
                self._over[source].join(found, rounds=1)
                if self._over[source].many:
                    yield source, self._over[source]
