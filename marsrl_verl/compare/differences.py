"""The table of differences between methods, from the rows of finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from marsrl_verl.compare.results import Row
from marsrl_verl.compare.statistics import MOST_FLIPPED, least_p, seed_differences, sign_flip_p, t_interval
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, MetricInfo, metric_label
from marsrl_verl.evaluation.suite import AFTER


def differences_table(
    rows: Sequence[Row], metrics: Mapping[str, MetricInfo], confidence: float = 0.95
) -> str:
    """Every other method less the first one after training, as Markdown: the mean of the differences of equal
    seeds in percentage points with its t interval and, where there are enough seeds for it to fall below
    1 - `confidence`, p of the exact sign-flip test.

    Bold: the interval leaves out 0, and figures of so many cases are judged (`MetricInfo.judged`).

    Args:
        rows: of the runs.
        metrics: a line each, of the greedy metric where no run sampled it.
    """
    reference, *others = dict.fromkeys(row.method for row in rows)
    lines = [f"| less {reference} | {' | '.join(others)} |", "|---|" + "---:|" * len(others)]
    for name, info in metrics.items():
        sampled = [row for row in rows if row.metric == f"{AFTER}/{name}"]
        measured = sampled or [row for row in rows if row.metric == f"{AFTER}/{name}{GREEDY_SUFFIX}"]
        first = _by_seed(measured, reference)
        cells = [_cell(info, first, _by_seed(measured, method), confidence) for method in others]
        shown = metric_label(metrics, name if sampled or not measured else name + GREEDY_SUFFIX)
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fewest_cases(rows: Iterable[Row], metric: str, method: str) -> int | None:
    """The fewest observations behind a figure of one of the method's runs; None where that is not known, or
    where there is no figure."""
    counts = [row.cases for row in rows if (row.metric, row.method) == (metric, method) and row.cases]
    return min(counts, default=None)


def _by_seed(rows: Iterable[Row], method: str) -> dict[int, Row]:
    return {row.seed: row for row in rows if row.method == method and row.value is not None}


def _cell(info: MetricInfo, first: dict[int, Row], second: dict[int, Row], confidence: float) -> str:
    values = [{seed: row.value for seed, row in side.items()} for side in (first, second)]
    differences = seed_differences(*values)
    delta = t_interval(differences, confidence)
    if delta.mean is None:
        return "–"
    text = f"{100 * delta.mean:+.1f}"
    if delta.low is not None and delta.high is not None:
        text += f" [{100 * delta.low:+.1f}, {100 * delta.high:+.1f}]"
    cases = [side[seed].cases for side in (first, second) for seed in first.keys() & second.keys()]
    if delta.sign and info.judged(*cases):
        text = f"**{text}**"
    if least_p(len(differences)) < 1 - confidence and len(differences) <= MOST_FLIPPED:
        text += f", p {sign_flip_p(differences):.2g}"
    return text
