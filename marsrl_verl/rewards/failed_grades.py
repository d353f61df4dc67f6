"""A failed grade is data; a role of which every grade fails has a broken reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from marsrl_verl.core.types import Sample
from marsrl_verl.rewards.running import RewardUnavailableError

LEAST_GRADES = 8
"""Fewer failed grades in a row than these may be chance; they add up over rounds."""
WARNED_SHARE = 0.1
"""Share of failed grades from which on a step is warned of."""
_SHOWN_CHARACTERS = 300

Answered = Iterable[tuple[str, Sample]]
"""Samples, each with the role that answered."""


class GradeWatch:
    """Looks at every round's grades, each role's by itself."""

    def __init__(self) -> None:
        self._failed_in_a_row: Counter[str] = Counter()

    def look(self, answered: Answered) -> None:
        """Look at one round. Samples that have not ended are passed over.

        Raises:
            RewardUnavailableError: the last `LEAST_GRADES` or more grades of a role all failed, those of this
                round among them.
        """
        for role, (failed, graded, first) in _counts(answered).items():
            if failed < graded:
                del self._failed_in_a_row[role]
                continue
            self._failed_in_a_row[role] += failed
            if self._failed_in_a_row[role] >= LEAST_GRADES:
                raise RewardUnavailableError(
                    f"all of the last {self._failed_in_a_row[role]} grades of the {role} failed, so nothing "
                    f"can be trained: mend its reward (marsrl.reward.{role}). The first error of this round: "
                    f"{first}"
                )


def grade_warnings(answered: Answered) -> list[str]:
    """A sentence for each role of which many grades failed, with the first error."""
    return [
        f"warning: {failed} of {graded} grades of the {role} failed, these samples are not trained; the "
        f"first: {first}"
        for role, (failed, graded, first) in _counts(answered).items()
        if failed >= WARNED_SHARE * graded and failed
    ]


def _counts(answered: Answered) -> dict[str, tuple[int, int, str]]:
    """By role: failed grades, all grades, the first error."""
    found: dict[str, tuple[int, int, str]] = {}
    for role, sample in answered:
        outcome = sample.outcome
        if outcome is None:
            continue
        failed, graded, first = found.get(role, (0, 0, ""))
        if not outcome.graded:
            failed, first = failed + 1, first or _one_line(outcome.error or "no error is recorded")
        found[role] = failed, graded + 1, first
    return found


def _one_line(text: str) -> str:
    """Printable and short: an error may quote a whole response."""
    line = "".join(c for c in " ".join(text.split()) if c.isprintable())
    return line if len(line) <= _SHOWN_CHARACTERS else line[:_SHOWN_CHARACTERS] + "…"
