"""The before → after table, for the terminal and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marsrl_verl.evaluation.estimators import Estimate
from marsrl_verl.reporting.summary import Change

if TYPE_CHECKING:
    from rich.table import Table

_FLAGS = {1: "better", -1: "WORSE", 0: ""}
_STYLES = {1: "bold green", -1: "bold red", 0: ""}


def percent(value: Estimate) -> str:
    """`41.2 % [37.0, 45.6]`, or a dash when nothing was observed."""
    if value.mean is None or value.low is None or value.high is None:
        return "–"
    return f"{100 * value.mean:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def points(value: Estimate) -> str:
    """A difference in percentage points, `+12.3 [+8.1, +16.5]`, or a dash."""
    if value.mean is None or value.low is None or value.high is None:
        return "–"
    return f"{100 * value.mean:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def flag(change: Change) -> str:
    """`better` or `WORSE` where the two intervals do not overlap, else empty."""
    return _FLAGS[change.direction]


def terminal_table(rows: list[Change], temperature: float = 1.0, confidence: float = 0.95) -> Table:
    """The table as a rich renderable: sampled rows, then greedy ones."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=f"Before → after training, mean and {100 * confidence:g} % interval",
        caption="Change in percentage points, paired by problem. better/WORSE: the intervals do not overlap.",
        box=box.SIMPLE_HEAD,
        title_style="bold",
    )
    table.add_column("", no_wrap=True)
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for greedy in (False, True):
        some = [row for row in rows if row.greedy == greedy]
        if some:
            table.add_row(Text(heading(greedy, temperature), style="bold cyan"))
        for row in some:
            cells = [percent(row.before), percent(row.after), points(row.delta), flag(row)]
            table.add_row(f"  {row.info.label}", *cells, style=_STYLES[row.direction])
        table.add_section()
    return table


def heading(greedy: bool, temperature: float) -> str:
    """The name of a block of rows."""
    return "greedy" if greedy else f"temperature {temperature:g}"


def markdown_table(rows: list[Change], temperature: float = 1.0) -> str:
    """The table as Markdown, one line per metric."""
    lines = ["| | before | after | change (points) | |", "|---|---:|---:|---:|---|"]
    for greedy in (False, True):
        some = [row for row in rows if row.greedy == greedy]
        if some:
            lines.append(f"| **{heading(greedy, temperature)}** | | | | |")
        for row in some:
            cells = (row.info.label, percent(row.before), percent(row.after), points(row.delta), flag(row))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
