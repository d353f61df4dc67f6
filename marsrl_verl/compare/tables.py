"""Tables of what a suite named before it ran: verdicts on its outcomes, and the best value of a grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from marsrl_verl.compare.curves import area
from marsrl_verl.compare.results import Finished
from marsrl_verl.compare.statistics import seed_differences, t_interval
from marsrl_verl.compare.suite import AREA, Grid, Suite
from marsrl_verl.compare.verdicts import Difference, Verdict, judge
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate, MetricInfo, metric_label
from marsrl_verl.evaluation.suite import AFTER
from marsrl_verl.reporting.tables import points, points_interval

Outcomes: TypeAlias = Mapping[tuple[str, str], Mapping[int, float | None]]
"""Values by seed, of a method and a primary outcome."""


def outcomes_of(suite: Suite, finished: Iterable[Finished]) -> Outcomes:
    """What runs measured of a suite's primary outcomes."""
    found: dict[tuple[str, str], dict[int, float | None]] = {}
    for one in finished:
        for metric in suite.primary:
            value = (
                area(one.curve.points, suite.budget.amount)
                if metric == AREA
                else one.value(f"{AFTER}/{metric}")
            )
            found.setdefault((one.run.method, metric), {})[one.run.seed] = value
    return found


def verdict_table(
    suite: Suite, outcomes: Outcomes, metrics: Mapping[str, MetricInfo], confidence: float = 0.95
) -> str:
    """A line for each pair and primary outcome; empty where no pair has runs of both methods."""
    ran = {method for method, _ in outcomes}
    pairs = [pair for pair in suite.pairs if ran.issuperset(pair)]
    if not pairs:
        return ""
    values: dict[tuple[str, str], Sequence[float]] = {
        (f"{method} less {reference}", metric): [
            _sign(metric, metrics) * one
            for one in seed_differences(
                outcomes.get((reference, metric), {}), outcomes.get((method, metric), {})
            )
        ]
        for metric in suite.primary
        for method, reference in pairs
    }
    lines = [
        "| | outcome | seeds | difference | bootstrap | p, Holm's | verdict |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for one in judge(values, suite.margin, confidence):
        cells = [
            one.name,
            metric_label(metrics, one.metric),
            str(len(one.values)),
            points(one.interval),
            "–" if one.bootstrap is None else points_interval(*one.bootstrap),
            "–" if one.adjusted_p is None else f"{one.adjusted_p:.2g}",
            _verdict_text(one, suite.margin),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def grid_table(
    suite: Suite,
    grid: Grid,
    seeds: int,
    outcomes: Outcomes,
    metrics: Mapping[str, MetricInfo],
    confidence: float = 0.95,
) -> str:
    """With which value of the grid each method did best, by the mean of its primary outcomes."""
    lines = [f"| | {' | '.join(grid.values)} | best |", "|---|" + "---:|" * (len(grid.values) + 1)]
    for method in grid.methods:
        found = {
            value: t_interval(_scores(suite, outcomes, metrics, grid.name(method, value)), confidence)
            for value in grid.values
        }
        complete = {
            value: one.mean for value, one in found.items() if one.n == seeds and one.mean is not None
        }
        best = max(complete, key=complete.__getitem__, default="–")
        cells = [percent(one, seeds) for one in found.values()]
        lines.append(f"| {method} | {' | '.join(cells)} | {best} |")
    return "\n".join(lines)


def percent(value: Estimate, seeds: int) -> str:
    """`94.2 % [91.5, 96.9]`; with the number of seeds where some had nothing to observe."""
    if value.mean is None:
        return "–"
    text = f"{100 * value.mean:.1f} %"
    if value.low is not None and value.high is not None:
        text += f" [{100 * value.low:.1f}, {100 * value.high:.1f}]"
    return text + counted_seeds(value, seeds)


def counted_seeds(value: Estimate, seeds: int) -> str:
    """` (n = 3)` where some seeds had nothing to observe."""
    return f" (n = {value.n})" if value.n < seeds else ""


def _scores(suite: Suite, outcomes: Outcomes, metrics: Mapping[str, MetricInfo], method: str) -> list[float]:
    """The mean of the primary outcomes of each seed that has all of them."""
    by_metric = [
        {
            seed: _sign(metric, metrics) * value
            for seed, value in outcomes.get((method, metric), {}).items()
            if value is not None
        }
        for metric in suite.primary
    ]
    seeds = set.intersection(*map(set, by_metric))
    return [fmean(one[seed] for one in by_metric) for seed in sorted(seeds)]


def _sign(metric: str, metrics: Mapping[str, MetricInfo]) -> float:
    """-1 where lower is better, sampled or greedily."""
    info = metrics.get(metric.removesuffix(GREEDY_SUFFIX))
    return 1.0 if info is None or info.higher_is_better else -1.0


def _verdict_text(one: Difference, margin: float) -> str:
    if one.verdict is Verdict.EQUIVALENT:
        return f"equivalent within ±{100 * margin:g}"
    if one.verdict is Verdict.UNDECIDED:
        if len(one.values) < one.seeds_needed:
            return f"not decided ({one.seeds_needed} seeds could)"
        return "not decided" + (
            "" if one.detectable is None else f" (±{100 * one.detectable:.1f} would show)"
        )
    return f"**{one.verdict}**"
