"""Figures with intervals, and tables of them."""

from __future__ import annotations

import math

from marsrl_verl.compare.statistics import t_interval


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval (Student's t), NaN for a single value."""
    found = t_interval(values)
    if found.mean is None:
        raise ValueError("a mean needs a value, found none")
    return found.mean, math.nan if found.high is None else found.high - found.mean


def with_interval(values: list[float], digits: int, factor: float) -> str:
    mean, half = interval([value * factor for value in values])
    text = f"{mean:,.{digits}f}"
    return text if math.isnan(half) else f"{text} ± {half:,.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, *rows]
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
