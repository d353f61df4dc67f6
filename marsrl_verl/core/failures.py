"""Failures are data; many of one source, round after round, are that source's fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from marsrl_verl.core.sanitize import one_line

LEAST_FAILED, LEAST_FAILED_GROUPS = 8, 4
"""Fewer failures than these, or of fewer groups, may be the fault of the inputs (a reference that can't be
read fails its whole group); they add up over rounds."""
MAX_ABSENT = 16
"""Rounds without a source after which its earlier ones no longer count. A sequential step of many stages
calls a role once in as many rounds."""
_SHOWN_CHARACTERS = 300


@dataclass(slots=True)
class Failures:
    """Number of calls of a source, and of those that failed."""

    asked: int = 0
    failed: int = 0
    first_error: str = ""
    groups: set[str] = field(default_factory=set)
    """Groups of the failed calls."""
    rounds: int = 1

    def add(self, group_id: str, error: str | None) -> None:
        """Counts one call; None: it did not fail."""
        self.asked += 1
        if error is not None:
            self.failed += 1
            self.groups.add(group_id)
            self.first_error = self.first_error or shortened(error)

    def join(self, more: Failures, *, rounds: int = 0) -> None:
        """Adds those of the same round, or of `rounds` further ones."""
        self.asked += more.asked
        self.failed += more.failed
        self.groups |= more.groups
        self.first_error = self.first_error or more.first_error
        self.rounds += rounds

    @property
    def many(self) -> bool:
        """True if there are so many failures that the inputs can hardly be at fault."""
        return self.failed >= LEAST_FAILED and len(self.groups) >= LEAST_FAILED_GROUPS


def shortened(error: str) -> str:
    """An error in one line that fits a message; it may quote a whole response."""
    line = one_line(error)
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"


class FailedShares:
    """The share of failed calls of each source. `limit` gives the highest share that a source may have, and
    is called only when something of that source fails."""

    def __init__(self, limit: Callable[[str], float]) -> None:
        self.limit = limit
        self._round: dict[str, Failures] = {}
        self._over: dict[str, Failures] = {}
        """By source, failures of its last rounds, all over its limit."""
        self._absent: dict[str, int] = {}
        """Rounds since the last call of each of these sources."""

    def add(self, source: str, found: Failures) -> None:
        """Adds the calls of a part of the round."""
        self._round.setdefault(source, Failures()).join(found)

    def end_round(self) -> Iterator[tuple[str, Failures]]:
        """Yields the sources over their limits in this round and in their one before it, with all that failed
        since. A round without a source does not count for it; after more than `MAX_ABSENT` it begins
        anew."""
        ended, self._round = self._round, {}
        for source in list(self._over):
            self._absent[source] = 0 if source in ended else self._absent.get(source, 0) + 1
            if self._absent[source] > MAX_ABSENT:
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
