"""What hiding a step of each kind cost, over the whole response and in its halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.disruption.cuts import KINDS
from benchmarks.disruption.study import Disrupted
from benchmarks.tables import table
from marsrl_verl.evaluation.estimators import Estimate, Observations, difference, estimate

PLACES = ("anywhere", "first half", "second half")


@dataclass(frozen=True, slots=True)
class Line:
    """Accuracies of one kind of step at one place; intervals are at 95 %, clustered by problem."""

    kind: str
    place: str
    """Of the step in the original response."""
    nothing_hidden: Estimate
    step_hidden: Estimate
    lost: Estimate
    """The first less the second, paired."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        estimates = ("nothing_hidden", "step_hidden", "lost")
        return {
            "kind": self.kind,
            "place": self.place,
            **{name: getattr(self, name).to_json() for name in estimates},
        }


def summarise(disrupted: Sequence[Disrupted]) -> list[Line]:
    """A line for each kind and place. Pairs of which the grader failed on one are left out."""
    return [_line(disrupted, kind, place) for kind in KINDS for place in PLACES]


def _line(disrupted: Sequence[Disrupted], kind: str, place: str) -> Line:
    nothing, hidden = [], []
    for one in disrupted:
        if one.kind != kind or place not in ("anywhere", "first half" if one.first_half else "second half"):
            continue
        without, within = one.right_with_nothing_hidden, one.right_with_step_hidden
        if without is not None and within is not None:
            nothing.append((without, one.problem))
            hidden.append((within, one.problem))
    before, after = Observations.of(nothing), Observations.of(hidden)
    return Line(kind, place, estimate(before), estimate(after), difference(after, before))


def as_table(lines: Sequence[Line]) -> str:
    """The lines as a Markdown table, in per cent."""
    head = ["hidden step", "where", "answers", "nothing hidden, %", "hidden, %", "lost, points"]
    return table(
        head,
        [
            [
                line.kind,
                line.place,
                str(line.nothing_hidden.n),
                *(_cell(one) for one in (line.nothing_hidden, line.step_hidden, line.lost)),
            ]
            for line in lines
        ],
    )


def _cell(one: Estimate) -> str:
    if one.mean is None or one.low is None or one.high is None:
        return "–"
    return f"{100 * one.mean:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]"
