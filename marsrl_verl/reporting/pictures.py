"""An evaluation's pictures as files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marsrl_verl.core.sanitize import markdown
from marsrl_verl.evaluation.pictures import Bars, Curves, Matrix, Picture, Series
from marsrl_verl.reporting.curve import MARKS, dress, new_canvas, write_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _DPI = 960, 680, 200
"""Width and height in pixels, and pixels per inch: labels can be read at half the size."""
_OFFSETS, _CLOSE = ((4, 6), (4, -13), (-12, 6), (4, -13)), 24
"""Offsets of the labels from their points, in points, by series in turn: lines that run close keep them
apart; and pixels within which a series has one label."""
_HATCHES = ("", "//", "..", "xx")
_FOLDER = "pictures"


def draw_pictures(folder: Path, pictures: Iterable[Picture]) -> str:
    """Writes `pictures/<name>.png` in a run's folder; returns the Markdown that shows them, with their
    notes."""
    shown, notes = [], []
    for one in pictures:
        canvas = new_canvas(_WIDTH, _HEIGHT, _DPI)
        axes = canvas.figure.subplots()
        dress(axes, one.title, one.x_label, one.y_label, smaller=3)
        if isinstance(one, Curves):
            _draw_curves(axes, one)
        elif isinstance(one, Bars):
            _draw_bars(axes, one)
        elif isinstance(one, Matrix):
            _draw_matrix(axes, one)
        write_png(folder / _FOLDER / f"{one.name}.png", canvas)
        shown.append(f"![{markdown(one.title)}]({_FOLDER}/{one.name}.png)")
        notes += [f"- **{markdown(one.title)}**: {markdown(one.note)}"] if one.note else []
    return "\n\n".join(filter(None, ("\n".join(shown), "\n".join(notes))))


def _draw_curves(axes: Axes, picture: Curves) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    for (colour, mark), series in zip(cycle(MARKS), picture.series, strict=False):
        points = [(one, one.value.mean) for one in series.points if one.value.mean is not None]
        x, y = [one.x for one, _ in points], [mean for _, mean in points]
        below = [mean - (one.value.low or 0.0) for one, mean in points]
        above = [(one.value.high or 0.0) - mean for one, mean in points]
        style = f"{mark}:" if series.bound else f"{mark}-"
        label, bars = series.label, [below, above]
        axes.errorbar(x, y, bars, None, style, color=colour, capsize=3, elinewidth=1, label=label)
    if picture.doubling:
        axes.set_xscale("log", base=2)
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(2, (1,) if high > 8 * low else (1, 1.25, 1.5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.margins(x=0.08)
    axes.set_ylim(bottom=0)
    for place, ((colour, _), series) in enumerate(zip(cycle(MARKS), picture.series, strict=False)):
        _label(axes, series, colour, _OFFSETS[place % len(_OFFSETS)])
    _legend(axes)


def _label(axes: Axes, series: Series, colour: str, offset: tuple[int, int]) -> None:
    """The points' labels, from the last one on, except where the one before is too close."""
    taken = float("inf")
    for one in reversed(series.points):
        place = float(axes.transData.transform((one.x, 0))[0])
        if one.value.mean is not None and taken - place > _CLOSE:
            look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": colour}
            low = one.value.mean < 0.1 * axes.get_ylim()[1]  # below it are the axis' own numbers
            axes.annotate(one.label, (one.x, one.value.mean), _OFFSETS[0] if low else offset, **look)
            taken = place


def _draw_bars(axes: Axes, picture: Bars) -> None:
    from matplotlib.ticker import MaxNLocator

    places = range(len(picture.categories))
    floor = [0] * len(places)
    tallest = max((sum(column) for column in zip(*picture.parts.values(), strict=True)), default=0)
    looks = zip(cycle(MARKS), cycle(_HATCHES), picture.parts.items(), strict=False)
    for (colour, _), hatch, (label, counts) in looks:
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.8}
        bars = axes.bar(places, counts, bottom=floor, label=label, **look)
        tall = [f"{count:,}" if count > 0.06 * tallest else "" for count in counts]
        if len(places) <= 12:
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}
            for text in axes.bar_label(bars, tall, label_type="center", fontsize=8):
                if text.get_text():
                    text.set_bbox(box)
        floor = [low + count for low, count in zip(floor, counts, strict=True)]
    step = -(-len(places) // 12)
    axes.set_xticks(list(places)[::step], list(picture.categories)[::step])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(False, axis="x")
    axes.set_axisbelow(True)
    _legend(axes)


def _draw_matrix(axes: Axes, picture: Matrix) -> None:
    sums = [sum(row) or 1 for row in picture.counts]
    shares = [[count / total for count in row] for row, total in zip(picture.counts, sums, strict=True)]
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for i, (row, counts) in enumerate(zip(shares, picture.counts, strict=True)):
        for j, (share, count) in enumerate(zip(row, counts, strict=True)):
            text, colour = f"{count:,}\n{100 * share:.0f} %", "white" if share > 0.55 else "black"
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=12)
    axes.set_xticks(range(len(picture.columns)), list(picture.columns))
    axes.set_yticks(range(len(picture.rows)), list(picture.rows))
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _legend(axes: Axes) -> None:
    """Below the axes, where it hides no point."""
    axes.figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
