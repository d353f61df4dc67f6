"""The table of differences between methods, from the rows of finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marsrl_verl.compare.results import Row
from marsrl_verl.compare.statistics import MOST_DIVISIONS, divisions, paired_difference, permutation_p
from marsrl_verl.evaluation.estimators import FEW, Estimate
from marsrl_verl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.evaluation.suite import AFTER


def differences_table(rows: Sequence[Row], confidence: float = 0.95) -> str:
    """Every other method less the first one after training, as Markdown: the mean of the differences of equal
    seeds in percentage points with its t interval, and p of the exact permutation test.

    Bold: the interval leaves out 0, and every run has at least `FEW` cases behind its figure.
    """
    reference, *others = dict.fromkeys(row.method for row in rows)
    lines = [f"| less {reference} | {' | '.join(others)} |", "|---|" + "---:|" * len(others)]
    for name, info in EVALUATION_METRICS.items():
        measured = [row for row in rows if row.metric == f"{AFTER}/{name}"]
        first = _by_seed(measured, reference)
        cells = [_cell(first, _by_seed(measured, method), confidence) for method in others]
        lines.append(f"| {info.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fewest_cases(rows: Iterable[Row], metric: str, method: str) -> int | None:
    """The fewest observations behind a figure of one of the method's runs; None where that is not known, or
    where there is no figure."""
    counts = [row.cases for row in rows if (row.metric, row.method) == (metric, method) and row.cases]
    return min(counts, default=None)


def _by_seed(rows: Iterable[Row], method: str) -> dict[int, Row]:
    return {row.seed: row for row in rows if row.method == method and row.value is not None}


def _cell(first: dict[int, Row], second: dict[int, Row], confidence: float) -> str:
    values = [{seed: row.value for seed, row in side.items()} for side in (first, second)]
    delta = paired_difference(values[0], values[1], confidence)
    if delta.mean is None:
        return "–"
    text = f"{100 * delta.mean:+.1f}"
    if delta.low is not None and delta.high is not None:
        text += f" [{100 * delta.low:+.1f}, {100 * delta.high:+.1f}]"
    if _clear(delta, [*first.values(), *second.values()]):
        text = f"**{text}**"
    groups = [[value for value in side.values() if value is not None] for side in values]
    if divisions(len(groups[0]), len(groups[1])) <= MOST_DIVISIONS:
        text += f", p {permutation_p(groups[0], groups[1]):.2f}"
    return text


def _clear(delta: Estimate, rows: Iterable[Row]) -> bool:
    return delta.sign != 0 and all(row.cases is None or row.cases >= FEW for row in rows)
