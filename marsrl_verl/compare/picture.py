"""The picture of a comparison: final metrics with intervals, and training against what its budget counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marsrl_verl.compare.curves import mean_curve
from marsrl_verl.compare.results import (
    Finished,
    by_method,
    headline_of,
    metrics_of,
    over_seeds,
    start_over_seeds,
)
from marsrl_verl.compare.statistics import CONFIDENCE
from marsrl_verl.compare.suite import Suite
from marsrl_verl.evaluation.estimators import Estimate, metric_label
from marsrl_verl.evaluation.suite import AFTER, BEFORE
from marsrl_verl.reporting.curve import dress, new_canvas, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333", "#882255")
"""Distinguishable with any colour vision (Okabe–Ito, wine in place of yellow); taken in order."""
ROUNDS = (("o", "-"), ("s", "--"), ("^", ":"))
"""Marker and line of as many methods as there are colours, and of those after them."""

WIDTH, HEIGHT, DPI = 1400, 650, 100
"""Size of the picture in pixels, and pixels per inch."""


def draw_comparison(path: Path, suite: Suite, finished: Sequence[Finished]) -> Path:
    """Writes a PNG.

    Left: the suite's headline metrics after training by method, with intervals over seeds; a line marks the
    start. Right: the suite's curve metric against what its budget counts, thin by seed and thick their mean.
    Axes without data say so.
    """
    canvas = new_canvas(WIDTH, HEIGHT, DPI)
    figure = canvas.figure
    figure.suptitle(suite.title, fontsize=16, fontweight="bold")
    final, training = figure.subplots(1, 2)
    _draw_final(final, suite, finished)
    _draw_training(training, suite, finished)
    # One legend below both, where it hides no point: a method has one colour.
    named = {
        label: handle
        for axes in (training, final)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if named:
        figure.legend(
            named.values(), named.keys(), fontsize=11, loc="outside lower center", ncols=8, frameon=False
        )
    return write_png(path, canvas)


def _draw_final(axes: Axes, suite: Suite, finished: Sequence[Finished]) -> None:
    dress(axes, "After training", "", "share")
    axes.yaxis.set_major_formatter(_per_cent)
    methods, metrics = list(by_method(finished)), metrics_of(finished)
    headline = suite.headline or headline_of(finished)
    width = 0.8 / max(1, len(methods))
    for place, metric in enumerate(headline):
        values = over_seeds(finished, f"{AFTER}/{metric}")
        starts = over_seeds(finished, f"{BEFORE}/{metric}")
        start = start_over_seeds(finished, metric)
        for index, method in enumerate(methods):
            x = place + (index - (len(methods) - 1) / 2) * width
            _draw_estimate(axes, x, values[method], index, method if not place else "")
            own = starts[method].mean
            if start is None and own is not None:
                axes.hlines(own, x - width / 2, x + width / 2, colors="#777777", linestyles="--")
        if start is not None and start.mean is not None:
            ends, label = (place - 0.45, place + 0.45), "" if place else "start"
            axes.hlines(start.mean, *ends, colors="#777777", linestyles="--", label=label)
    labels = [metric_label(metrics, name) for name in headline]
    axes.set_xticks(range(len(headline)), labels)
    axes.set_xlim(-0.6, len(headline) - 0.4)
    note = f"bars: {100 * CONFIDENCE:g} % t intervals over seeds"
    axes.text(0.99, 0.01, note, transform=axes.transAxes, ha="right", fontsize=10, color="#555555")
    _finish(axes, "no finished run")


def style(index: int) -> tuple[str, str, str]:
    """Colour, marker and line of a method, by its place."""
    number, colour = divmod(index, len(COLOURS))
    return COLOURS[colour], *ROUNDS[number % len(ROUNDS)]


def _draw_estimate(axes: Axes, x: float, value: Estimate, index: int, label: str) -> None:
    if value.mean is None:
        return
    error = None
    if value.low is not None and value.high is not None:
        error = [[value.mean - value.low], [value.high - value.mean]]
    colour, marker, _ = style(index)
    axes.errorbar(
        [x], [value.mean], yerr=error, color=colour, marker=marker, ls="", capsize=4, label=label or None
    )


def _draw_training(axes: Axes, suite: Suite, finished: Sequence[Finished]) -> None:
    counted = suite.budget.quantity
    dress(axes, f"While training: {suite.curve}", counted.label, "share")
    axes.yaxis.set_major_formatter(_per_cent)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.4g}k")
    for index, (method, some) in enumerate(by_method(finished).items()):
        colour, _, line = style(index)
        curves = [one.curve.points for one in some if one.curve.taken]
        for tokens, values in curves:
            axes.plot(tokens, values, line, color=colour, linewidth=0.8, alpha=0.3)
        if curves:
            axes.plot(*mean_curve(curves), line, color=colour, linewidth=2.5, label=method)
    _finish(axes, "not in metrics.jsonl")


def _per_cent(value: float, _: object) -> str:
    return f"{100 * value:.0f} %"


def _finish(axes: Axes, empty: str) -> None:
    """A word where nothing was drawn."""
    if not axes.get_legend_handles_labels()[1]:
        axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", fontsize=14, color="#777777")
