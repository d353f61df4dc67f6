"""Pictures of an evaluation as data: an evaluation declares them (`Evaluation.pictures`), the report draws
them (`reporting.pictures`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marsrl_verl.evaluation.estimators import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The parts that all pictures have."""

    name: str
    """Name of its file, without the ending."""
    title: str
    x_label: str
    y_label: str
    note: str = ""
    """A sentence for the reader."""


@dataclass(frozen=True, slots=True)
class Point:
    """A share with its interval."""

    x: float
    value: Estimate
    label: str = ""
    """Beside the point, in a word or two."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line of points."""

    label: str
    points: Sequence[Point]
    bound: bool = False
    """True if no system reaches it without knowing the right answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves(Picture):
    """Shares, from 0 to 1, against a number."""

    series: Sequence[Series]
    doubling: bool = False
    """True: the number is shown on a logarithmic scale; else it is a whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Picture):
    """Counts on top of each other."""

    categories: Sequence[str]
    """Names of the bars from left to right."""
    parts: Mapping[str, Sequence[int]]
    """Counts for each category, by what is counted, the lowest part first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix(Picture):
    """Counts by two criteria, shaded by their share of their row."""

    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]
