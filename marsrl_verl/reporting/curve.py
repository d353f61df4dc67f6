"""The learning curve as a picture: role rewards per step, and evaluations with their intervals."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from marsrl_verl.evaluation.estimators import Estimate, metric_label
from marsrl_verl.evaluation.suite import EvaluationRecord
from marsrl_verl.evaluation.training_metrics import counting, role_metric
from marsrl_verl.reporting.files import write_bytes_atomic
from marsrl_verl.reporting.metrics_log import StepMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#333333", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = tuple(zip(_COLOURS, "os^DvPX", strict=True))
"""Colours, distinguishable with any colour vision (Okabe–Ito), and markers; taken in order, again from the
start."""

WIDTH, HEIGHT, DPI = 1200, 700, 100
"""Size of the picture in pixels, and pixels per inch."""


def smooth(values: list[float], window: int) -> list[float]:
    """Centred moving mean; the window shrinks at the ends so that the curve has every step."""
    if window < 1:
        raise ValueError(f"the window must be 1 or more, found {window}")
    reach = window // 2
    spans = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
    return [sum(span) / len(span) for span in spans]


def draw_learning_curve(
    path: Path,
    steps: list[StepMetrics],
    evaluations: list[EvaluationRecord],
    title: str = "Learning curve",
    roles: Sequence[str] = (),
) -> Path:
    """Writes a PNG of 1200 x 700 pixels.

    Left: the mean reward of each role's training samples, per step (dots) and smoothed (line), and of passes
    that train no role (crosses); colours by the order of `roles`. Right: the evaluations on held-out problems
    with their intervals. Axes without data say so.
    """
    canvas = new_canvas(WIDTH, HEIGHT, DPI)
    figure = canvas.figure
    # The title has the run's name in it, which is no formula.
    figure.suptitle(title, fontsize=16, fontweight="bold", parse_math=False)
    training, held_out = figure.subplots(1, 2)
    _draw_training(training, steps, roles)
    _draw_evaluations(held_out, sorted(evaluations, key=lambda record: record.step))
    return write_png(path, canvas)


def draw_role_panels(path: Path, steps: list[StepMetrics], roles: Sequence[str]) -> bool:
    """Writes a PNG of how long each role's responses are, how many end by themselves, and how many groups
    have equal rewards, over the steps. False: no step says anything of them."""
    from matplotlib.ticker import MaxNLocator

    panels: dict[str, tuple[Sequence[str], Callable[..., float]]] = {
        "Response length, tokens": (("response_length_mean",), float),
        "Finished responses, share": (
            ("truncation_frac", "failed_frac"),
            lambda cut, failed: 1 - cut - failed,
        ),
        "Groups with equal rewards, share": (("zero_std_groups", "groups"), lambda some, of: some / of),
    }
    canvas = new_canvas(WIDTH, HEIGHT // 2, DPI)
    for axes, (title, (names, value)) in zip(canvas.figure.subplots(1, 3), panels.items(), strict=True):
        dress(axes, title, "training step", "", smaller=3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for (colour, _), role in zip(cycle(MARKS), roles, strict=False):
            points = []
            for one in steps:
                found = [one.metrics.get(role_metric(role, name)) for name in names]
                if None not in found:
                    points.append((one.step, value(*found)))
            if points:
                x, y = zip(*points, strict=True)
                marker = "o" if len(x) < 3 else ""
                axes.plot(x, y, color=colour, marker=marker, linewidth=2, label=role.capitalize())
        axes.set_ylim(bottom=0)
    handles, labels = canvas.figure.axes[-1].get_legend_handles_labels()
    if handles:
        canvas.figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        write_png(path, canvas)
    return bool(handles)


def new_canvas(width: int, height: int, dpi: int) -> FigureCanvasAgg:
    """An empty figure of so many pixels, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    return FigureCanvasAgg(Figure(figsize=(width / dpi, height / dpi), dpi=dpi, layout="constrained"))


def write_png(path: Path, canvas: FigureCanvasAgg) -> Path:
    """Writes the figure; a reader never sees half of it."""
    picture = io.BytesIO()
    canvas.print_png(picture)
    write_bytes_atomic(path, picture.getvalue())
    return path


def _draw_training(axes: Axes, steps: list[StepMetrics], roles: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    dress(axes, "Training: mean reward by role", "training step", "mean reward")
    lowest, highest = 0.0, 1.0
    for (colour, _), role in zip(cycle(MARKS), roles, strict=False):
        x, y = _rewards(steps, counting(role))
        if x:  # no curve of training: other problems, asked in another way
            lowest, highest = min(lowest, *y), max(highest, *y)
            axes.plot(x, y, "x", color=colour, markersize=5, label=f"{role.capitalize()}, counting")
        x, y = _rewards(steps, role)
        if not x:
            continue
        lowest, highest = min(lowest, *y), max(highest, *y)
        window = max(1, len(y) // 10) | 1
        axes.plot(x, y, ".", color=colour, alpha=0.3, markersize=5)
        marker = "o" if len(y) < 3 else ""  # a line of one point is invisible
        line = smooth(y, window)
        axes.plot(x, line, color=colour, marker=marker, linewidth=2.5, label=role.capitalize())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(lowest, highest + 0.02 * (highest - lowest))
    _finish(axes, columns=3, empty="no training step yet")


def _rewards(steps: list[StepMetrics], role: str) -> tuple[list[int], list[float]]:
    """The steps that have a mean reward of the role, and these."""
    pairs = [(item.step, item.metrics.get(role_metric(role, "reward_mean"))) for item in steps]
    found = [(step, value) for step, value in pairs if value is not None]
    return [step for step, _ in found], [value for _, value in found]


def _draw_evaluations(axes: Axes, evaluations: list[EvaluationRecord]) -> None:
    dress(axes, "Evaluation on held-out problems", "after training step", "share")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if evaluations:
        steps = [record.step for record in evaluations]
        width = max(1, steps[-1] - steps[0])
        metrics = {name: info for record in evaluations for name, info in record.metrics.items()}
        measured = [(record.step, record.estimates) for record in evaluations]
        curves = list(dict.fromkeys(name for record in evaluations for name in record.curves))
        for index, ((colour, marker), metric) in enumerate(zip(cycle(MARKS), curves, strict=False)):
            # Keeps error bars of different metrics apart.
            shift = (index - (len(curves) - 1) / 2) * 0.02 * width
            found = [(step, item[metric]) for step, item in measured if metric in item]
            _draw_estimates(axes, found, shift, colour, marker, metric_label(metrics, metric))
        axes.set_xlim(steps[0] - 0.15 * width, steps[-1] + 0.15 * width)
        if len(steps) <= 6:
            axes.set_xticks(steps)
        first = evaluations[0]
        how = f"temperature {first.temperature:g}" if first.samples_per_problem else "greedy"
        note = f"{how}, bars: {100 * first.confidence:g} % intervals"
        axes.text(0.99, 0.01, note, transform=axes.transAxes, ha="right", fontsize=10, color="#555555")
    _finish(axes, columns=2, empty="no evaluation")


def _draw_estimates(
    axes: Axes, estimates: list[tuple[int, Estimate]], shift: float, colour: str, marker: str, label: str
) -> None:
    points = [
        (step + shift, item.mean, item.mean - item.low, item.high - item.mean)
        for step, item in estimates
        if item.mean is not None and item.low is not None and item.high is not None
    ]
    if not points:
        return
    x, y, below, above = (list(column) for column in zip(*points, strict=True))
    label += f"  {100 * y[0]:.0f} → {100 * y[-1]:.0f} %" if len(y) > 1 else f"  {100 * y[0]:.0f} %"
    bars = [below, above]
    axes.errorbar(x, y, yerr=bars, color=colour, marker=marker, linewidth=1.8, capsize=4, label=label)


def dress(axes: Axes, title: str, xlabel: str, ylabel: str, smaller: int = 0) -> None:
    """Title, labels and grid, in letters that are so many points smaller than a large picture's."""
    axes.set_title(title, fontsize=14 - smaller)
    axes.set_xlabel(xlabel, fontsize=13 - smaller)
    axes.set_ylabel(ylabel, fontsize=13 - smaller)
    axes.tick_params(labelsize=12 - smaller)
    axes.grid(True, alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _finish(axes: Axes, columns: int, empty: str) -> None:
    """A legend below the axes, where it hides no point; or a word where nothing was drawn."""
    if axes.get_legend_handles_labels()[1]:
        place = (0.5, -0.11)
        axes.legend(fontsize=11, loc="upper center", bbox_to_anchor=place, ncols=columns, frameon=False)
    else:
        axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", fontsize=14, color="#777777")
