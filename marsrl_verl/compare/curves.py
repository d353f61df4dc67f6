"""Training curves: what a run measured on its way, against what it had taken until then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.compare.suite import TOKENS, Quantity
from marsrl_verl.evaluation.suite import EvaluationRecord
from marsrl_verl.reporting.metrics_log import StepMetrics

GRID = 60
"""Points at which the seeds' curves are averaged."""
EVALUATED = "val/"
"""Prefix of the metrics of evaluations."""
SMOOTHED = 3
"""Points of a curve whose mean is its level at the last of them."""

Curve: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Amount counted up to and with each point, and the values there."""


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A metric over the course of a run."""

    metric: str
    taken: tuple[int, ...] = ()
    """Amount counted up to and with each point."""
    values: tuple[float, ...] = ()
    excluded: int = 0
    """Evaluations that have the metric but make no point: they had other problems than all of the run's
    evaluations share, and the metric is not known by problem."""

    @property
    def points(self) -> Curve:
        """The curve as arrays."""
        return np.array(self.taken, dtype=float), np.array(self.values, dtype=float)


def training_curve(
    metric: str,
    steps: Iterable[StepMetrics],
    evaluations: Sequence[EvaluationRecord] = (),
    counted: Quantity = TOKENS,
) -> RunCurve:
    """A metric of `metrics.jsonl`, or `val/…` of the evaluations; steps without a value are left out."""
    name = metric.removeprefix(EVALUATED)
    is_evaluated = name != metric
    evaluated = _evaluated(evaluations, name) if is_evaluated else {}
    total, points = 0, []
    for step in [StepMetrics(0, {}, {}), *steps]:
        total += int(step.metrics.get(counted.metric) or 0)
        value = evaluated.get(step.step) if is_evaluated else step.metrics.get(metric)
        if value is not None:
            points.append((total, round(float(value), 6)))
    found = [(record.estimates | record.effort).get(name) for record in evaluations if is_evaluated]
    excluded = sum(one is not None and one.mean is not None for one in found) - len(evaluated)
    return RunCurve(metric, tuple(x for x, _ in points), tuple(y for _, y in points), excluded)


def _evaluated(evaluations: Sequence[EvaluationRecord], name: str) -> dict[int, float]:
    """An evaluation metric by step, on the problems that all evaluations of the run share: those in
    between may have fewer than those before and after, and these may be easier or harder than the rest."""
    problem_ids = [_problem_ids(record) for record in evaluations]
    shared = frozenset.intersection(*problem_ids) if problem_ids else frozenset()
    values = {}
    for record in evaluations:
        if name in record.observations:
            values[record.step] = record.observations[name].among(shared).mean
        elif _problem_ids(record) == shared:
            # What is no share of observations can't be taken apart.
            found = record.estimates | record.effort
            values[record.step] = found[name].mean if name in found else None
    return {step: value for step, value in values.items() if value is not None}


def _problem_ids(record: EvaluationRecord) -> frozenset[str]:
    return frozenset(id_ for found in record.observations.values() for id_ in found.problems)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of curves over the span that all of them cover, interpolated between their points."""
    low, high = max(tokens[0] for tokens, _ in curves), min(tokens[-1] for tokens, _ in curves)
    grid = np.linspace(low, max(low, high), GRID)
    return grid, np.mean([np.interp(grid, tokens, values) for tokens, values in curves], axis=0)


def smoothed(curve: Curve) -> Curve:
    """Each value's mean with those of the points before it, `SMOOTHED` in all; the first points, which have
    fewer before them, are left out."""
    counted, values = curve
    if len(values) < SMOOTHED:
        return counted[:0], values[:0]
    sums = np.cumsum(np.insert(values, 0, 0.0))
    return counted[SMOOTHED - 1 :], (sums[SMOOTHED:] - sums[:-SMOOTHED]) / SMOOTHED


def area(curve: Curve, budget: float) -> float | None:
    """The curve's mean height over the budget: the area under it, divided by the budget. Before its first
    point, and after its last, it is level. None: it has no point."""
    counted, values = curve
    if not len(values):
        return None
    inside = np.minimum(counted, budget)
    ends = np.concatenate([[0.0], inside, [budget]])
    heights = np.concatenate([values[:1], values, values[-1:]])
    return float(np.sum(np.diff(ends) * (heights[1:] + heights[:-1]) / 2) / budget)


@dataclass(frozen=True, slots=True)
class Reached:
    """The point at which a run reached a level."""

    share: float
    """Share of the budget that it had taken by then; 1 if it never reached the level."""
    reached: bool


def reached(curve: Curve, level: float, budget: float) -> Reached | None:
    """Finds where the smoothed curve first reaches a level, interpolating linearly between two points; None
    if it has no point."""
    counted, values = smoothed(curve)
    if not len(values):
        return None
    above = np.flatnonzero(values >= level)
    if not len(above):
        return Reached(1.0, False)
    place = int(above[0])
    at = counted[place]
    if place:
        low, high = values[place - 1], values[place]
        at = counted[place - 1] + (level - low) / (high - low) * (at - counted[place - 1])
    return Reached(min(1.0, float(at / budget)), True)


def final_level(curve: Curve) -> float | None:
    """The smoothed curve's last value."""
    values = smoothed(curve)[1]
    return float(values[-1]) if len(values) else None
