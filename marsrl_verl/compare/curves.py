"""Training curves: what a run measured on its way, against what it had taken until then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.compare.results import Finished
from marsrl_verl.compare.suite import TOKENS, Quantity, Suite
from marsrl_verl.evaluation.suite import EvaluationRecord
from marsrl_verl.reporting.metrics_log import StepMetrics

_REWARD = re.compile(r"role/[^/]+/reward_mean")
GRID = 60
"""Points at which the seeds' curves are averaged."""
EVALUATED = "val/"
"""What metrics of evaluations begin with."""
SMOOTHED = 3
"""Points of a curve whose mean is its level at the last of them."""

Curve: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""What was counted up to and with each point, and the values there."""


def curve_metric(suite: Suite, finished: Sequence[Finished]) -> str:
    """The metric of a suite's curves: the one that it names, else the first role's mean reward."""
    names = (name for one in finished for step in one.steps for name in step.metrics)
    return suite.curve or next((name for name in names if _REWARD.fullmatch(name)), "reward")


def training_curve(one: Finished, metric: str, counted: Quantity = TOKENS) -> Curve:
    """A metric of `metrics.jsonl`, or `val/…` of the evaluations; steps without a value are left out."""
    is_evaluated = metric.startswith(EVALUATED)
    evaluated = _evaluated(one, metric.removeprefix(EVALUATED)) if is_evaluated else {}
    total, points = 0, []
    for step in [StepMetrics(0, {}, {}), *one.steps]:
        total += int(step.metrics.get(counted.metric) or 0)
        value = evaluated.get(step.step) if is_evaluated else step.metrics.get(metric)
        if value is not None:
            points.append((total, value))
    return np.array([x for x, _ in points], dtype=float), np.array([y for _, y in points], dtype=float)


def _evaluated(one: Finished, name: str) -> dict[int, float]:
    """An evaluation metric by step, of the problems that all evaluations of the run have asked: those in
    between may have fewer than those before and after, and these may be easier or harder than the rest."""
    shared = _shared_problems(one)
    values = {}
    for record in one.evaluations:
        if name in record.observations:
            values[record.step] = record.observations[name].among(shared).mean
        elif _problem_ids(record) == shared:
            # What is no share of observations can't be taken apart.
            found = record.estimates | record.effort
            values[record.step] = found[name].mean if name in found else None
    return {step: value for step, value in values.items() if value is not None}


def excluded_evaluations(one: Finished, metric: str) -> int:
    """Evaluations that have a metric and are not in its curve: they asked other problems than all of the run
    did, and the metric is not known by problem."""
    name = metric.removeprefix(EVALUATED)
    if name == metric:
        return 0
    found = [(record.estimates | record.effort).get(name) for record in one.evaluations]
    known = [value for value in found if value is not None and value.mean is not None]
    return len(known) - len(_evaluated(one, name))


def _problem_ids(record: EvaluationRecord) -> frozenset[str]:
    return frozenset(id_ for found in record.observations.values() for id_ in found.problems)


def _shared_problems(one: Finished) -> frozenset[str]:
    problem_ids = [_problem_ids(record) for record in one.evaluations]
    return frozenset.intersection(*problem_ids) if problem_ids else frozenset()


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of curves over the span that all of them cover, interpolated between their points."""
    low, high = max(tokens[0] for tokens, _ in curves), min(tokens[-1] for tokens, _ in curves)
    grid = np.linspace(low, max(low, high), GRID)
    return grid, np.mean([np.interp(grid, tokens, values) for tokens, values in curves], axis=0)


def curves_json(suite: Suite, finished: Sequence[Finished]) -> list[dict[str, Any]]:
    """The curves of all runs as JSON objects."""
    metric, counted = curve_metric(suite, finished), suite.budget.quantity
    found = []
    for one in finished:
        taken, values = training_curve(one, metric, counted)
        found.append(
            {
                "method": one.run.method,
                "seed": one.run.seed,
                "metric": metric,
                counted.name: [int(count) for count in taken],
                "values": [round(float(value), 6) for value in values],
            }
        )
    return found


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
    """When a run came to a level."""

    share: float
    """What it had taken then, as a share of the budget; 1 where it never came there."""
    reached: bool


def reached(curve: Curve, level: float, budget: float) -> Reached | None:
    """When the smoothed curve first came to a level, between two points by a straight line. None: it has no
    point."""
    counted, values = smoothed(curve)
    if not len(values):
        return None
    above = np.flatnonzero(values >= level)
    if not len(above):
        return Reached(1.0, False)
    place = int(above[0])
    if place == 0:
        return Reached(min(1.0, float(counted[0] / budget)), True)
    low, high = values[place - 1], values[place]
    part = (level - low) / (high - low)
    at = counted[place - 1] + part * (counted[place] - counted[place - 1])
    return Reached(min(1.0, float(at / budget)), True)


def final_level(curve: Curve) -> float | None:
    """The smoothed curve's last value."""
    values = smoothed(curve)[1]
    return float(values[-1]) if len(values) else None
