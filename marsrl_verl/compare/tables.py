"""Tables of a comparison: verdicts on outcomes that a suite named before it ran, the best value of a grid,
and all differences between methods."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import TypeAlias

from marsrl_verl.compare.curves import area
from marsrl_verl.compare.results import Finished, Measured, by_method
from marsrl_verl.compare.statistics import (
    CONFIDENCE,
    MAX_FLIPPED,
    least_p,
    seed_differences,
    sign_flip_p,
    t_interval,
)
from marsrl_verl.compare.suite import AREA, Grid, Suite
from marsrl_verl.compare.verdicts import Difference, Verdict, judge
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate, MetricInfo, metric_label
from marsrl_verl.evaluation.suite import AFTER
from marsrl_verl.reporting.tables import points, points_interval

Outcomes: TypeAlias = Mapping[tuple[str, str], Mapping[int, float | None]]
"""Values by seed, of a method and a primary outcome."""


def outcomes_of(suite: Suite, finished: Iterable[Finished]) -> Outcomes:
    """Collects the runs' values of a suite's primary outcomes."""
    found: dict[tuple[str, str], dict[int, float | None]] = {}
    for one in finished:
        under_curve = area(one.curve.points, suite.budget.amount)
        for metric in suite.primary:
            value = under_curve if metric == AREA else one.value(f"{AFTER}/{metric}")
            found.setdefault((one.run.method, metric), {})[one.run.seed] = value
    return found


def verdict_table(suite: Suite, outcomes: Outcomes, metrics: Mapping[str, MetricInfo]) -> str:
    """A line for each pair and primary outcome; empty where no pair has runs of both methods."""
    ran = {method for method, _ in outcomes}
    pairs = [pair for pair in suite.pairs if ran.issuperset(pair)]
    if not pairs:
        return ""
    values: dict[tuple[str, str], Sequence[float]] = {}
    for metric, (method, reference) in product(suite.primary, pairs):
        both = (outcomes.get((one, metric), {}) for one in (reference, method))
        better = [_sign(metric, metrics) * one for one in seed_differences(*both)]
        values[f"{method} less {reference}", metric] = better
    head = ["", "outcome", "seeds", "difference", "bootstrap", "p, Holm's", "verdict"]
    rows = [
        [
            one.name,
            metric_label(metrics, one.metric),
            str(len(one.values)),
            points(one.interval),
            "–" if one.bootstrap is None else points_interval(*one.bootstrap),
            "–" if one.adjusted_p is None else f"{one.adjusted_p:.2g}",
            _verdict_text(one, suite.margin),
        ]
        for one in judge(values, suite.margin)
    ]
    return table_of(head, rows, texts=(0, 1, 6))


def grid_table(
    suite: Suite, grid: Grid, seeds: int, outcomes: Outcomes, metrics: Mapping[str, MetricInfo]
) -> str:
    """Tabulates the grid, with each method's best value by the mean of its primary outcomes."""
    rows = []
    for method in grid.methods:
        found = {
            value: t_interval(_scores(suite, outcomes, metrics, grid.name(method, value)))
            for value in grid.values
        }
        complete = {
            value: one.mean for value, one in found.items() if one.n == seeds and one.mean is not None
        }
        best = max(complete, key=complete.__getitem__, default="–")
        rows.append([method, *(percent(one, seeds) for one in found.values()), best])
    return table_of(["", *grid.values, "best"], rows)


def differences_table(finished: Sequence[Finished], metrics: Mapping[str, MetricInfo]) -> str:
    """Every other method less the first one after training: the mean of the differences of equal seeds in
    percentage points with its t interval and, where there are enough seeds for it to fall below
    1 - `CONFIDENCE`, p of the exact sign-flip test; a line each of `metrics`, of the greedy one where no run
    sampled it.

    Bold: the interval leaves out 0, and figures of so many cases are judged (`MetricInfo.judged`).
    """
    reference, *others = by_method(finished)
    measured = {name for one in finished for name in one.measured}
    lines = []
    for name, info in metrics.items():
        greedy = f"{AFTER}/{name}" not in measured and f"{AFTER}/{name}{GREEDY_SUFFIX}" in measured
        shown = name + GREEDY_SUFFIX if greedy else name
        first, *rest = (_by_seed(some, f"{AFTER}/{shown}") for some in by_method(finished).values())
        lines.append([metric_label(metrics, shown), *(_difference(info, first, other) for other in rest)])
    return table_of([f"less {reference}", *others], lines)


def _by_seed(runs: Iterable[Finished], metric: str) -> dict[int, Measured]:
    return {one.run.seed: one.measured[metric] for one in runs if one.value(metric) is not None}


def _difference(info: MetricInfo, first: dict[int, Measured], second: dict[int, Measured]) -> str:
    values = [{seed: one.value for seed, one in side.items()} for side in (first, second)]
    differences = seed_differences(*values)
    delta = t_interval(differences)
    if delta.mean is None:
        return "–"
    text = points(delta)
    cases = [side[seed].cases for side in (first, second) for seed in first.keys() & second.keys()]
    if delta.sign and info.judged(*cases):
        text = f"**{text}**"
    if least_p(len(differences)) < 1 - CONFIDENCE and len(differences) <= MAX_FLIPPED:
        text += f", p {sign_flip_p(differences):.2g}"
    return text


def fewest_cases(runs: Iterable[Finished], metric: str) -> int | None:
    """The fewest observations behind a figure of one of a method's runs; None where that is not known, or
    where there is no figure."""
    counts = [one.measured[metric].cases for one in runs if metric in one.measured]
    return min(filter(None, counts), default=None)


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: Collection[int] = (0,)) -> str:
    """Cells as Markdown; columns other than `texts` are figures, to the right."""

    def line(cells: Sequence[str]) -> str:
        return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"

    rule = "".join("|---" if place in texts else "|---:" for place in range(len(head))) + "|"
    return "\n".join([line(head), rule, *map(line, rows)])


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
        shown = "" if one.detectable is None else f" (±{100 * one.detectable:.1f} would show)"
        return f"not decided{shown}"
    return f"**{one.verdict}**"
