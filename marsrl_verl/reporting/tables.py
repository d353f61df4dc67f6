"""The before → after table, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from marsrl_verl.core.sanitize import markdown
from marsrl_verl.evaluation.benchmark_scores import benchmark_columns, of_several_answers, pass_at_most
from marsrl_verl.evaluation.estimators import FEW, GREEDY_SUFFIX, Estimate, metric_label
from marsrl_verl.reporting.summary import Change

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from marsrl_verl.evaluation.suite import EvaluationRecord

_FLAGS = {1: "better", -1: "WORSE", 0: ""}
NARROWEST = 60
"""Columns of a console on which nothing of a table is cut."""
_STYLES = {1: "bold green", -1: "bold red", 0: ""}


def percent(value: Estimate) -> str:
    """`41.2 % [37.0, 45.6]`, with `n=12` where these are few; or a dash when nothing was observed."""
    if value.mean is None or value.low is None or value.high is None:
        return "–"
    count = f" n={value.n}" if value.few else ""
    return f"{100 * value.mean:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]{count}"


def points(value: Estimate) -> str:
    """A difference in percentage points, `+12.3 [+8.1, +16.5]`; without an interval the mean alone, and a
    dash where there is none."""
    if value.mean is None:
        return "–"
    mean = f"{100 * value.mean:+.1f}"
    if value.low is None or value.high is None:
        return mean
    return f"{mean} {points_interval(value.low, value.high)}"


def points_interval(low: float, high: float) -> str:
    """An interval of differences in percentage points, `[+8.1, +16.5]`."""
    return f"[{100 * low:+.1f}, {100 * high:+.1f}]"


def verdict_rule(rows: Iterable[Change]) -> str:
    """Describes when a change is called better or worse."""
    unjudged = dict.fromkeys(row.info.label for row in rows if row.info.follows_errors)
    rule = f"better/WORSE: its interval leaves out 0. Not judged: rates of fewer than {FEW} cases (n=…)"
    if not unjudged:
        return f"{rule}."
    return f"{rule}, and {', '.join(unjudged)}, which follow how many and which errors are left."


def flag(change: Change) -> str:
    """`better` or `WORSE` by the change's interval, else empty."""
    return _FLAGS[change.direction]


def terminal_table(
    rows: list[Change], console: Console, temperature: float = 1.0, confidence: float = 0.95
) -> Table:
    """The table as a rich renderable: sampled rows, then greedy ones. Where the console is too narrow for it,
    intervals stand below their means: that takes `NARROWEST`."""
    from rich import box
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    def draw(stacked: bool) -> Table:
        table = Table(
            title=f"Before → after training, mean and {100 * confidence:g} % interval",
            caption="Change in percentage points, paired by problem. " + verdict_rule(rows),
            box=box.SIMPLE_HEAD,
            title_style="bold",
            padding=0 if stacked else (0, 1, 0, 0),
            show_edge=not stacked,
        )
        table.add_column("", overflow="fold")
        for name in ("before", "after", "change"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for title, some in _by_pass(rows, temperature):
            table.add_row(Text(title, style="bold cyan"))
            for row in some:
                cells = [percent(row.before), percent(row.after), points(row.delta)]
                if stacked:
                    cells = [_stacked(cell) for cell in cells]
                label = f"{'' if stacked else '  '}{row.info.label}"
                table.add_row(label, *cells, flag(row), style=_STYLES[row.direction])
            table.add_section()
        return table

    table = draw(stacked=False)
    whole = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    return table if whole <= console.width else draw(stacked=True)


def _stacked(cell: str) -> str:
    """A mean and below it its interval: `41.2 % n=12`, `[37.0, 45.6]`."""
    mean, _, interval = cell.partition(" [")
    interval, _, count = interval.partition("]")
    return f"{mean}{count}\n[{interval}]" if interval else cell


def _by_pass(rows: list[Change], temperature: float) -> list[tuple[str, list[Change]]]:
    """The blocks of a table: their headings and rows, sampled ones first."""
    sampled, greedy = ([row for row in rows if row.greedy == kind] for kind in (False, True))
    named = ((f"temperature {temperature:g}", sampled), ("greedy", greedy))
    return [(title, some) for title, some in named if some]


def markdown_table(rows: list[Change], temperature: float = 1.0) -> str:
    """The table as Markdown, one line per metric."""
    lines = ["| | before | after | change (points) | |", "|---|---:|---:|---:|---|"]
    for title, some in _by_pass(rows, temperature):
        lines.append(f"| **{title}** | | | | |")
        for row in some:
            cells = (row.info.label, percent(row.before), percent(row.after), points(row.delta), flag(row))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def evaluation_table(record: EvaluationRecord) -> Table:
    """One evaluation as a rich renderable: sampled rows, then greedy ones."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=f"Evaluation, mean and {100 * record.confidence:g} % interval",
        box=box.SIMPLE_HEAD,
        title_style="bold",
    )
    table.add_column("", overflow="fold")
    for name in ("value", "cases"):
        table.add_column(name, justify="right", overflow="fold")
    for title, rows in _blocks(record):
        table.add_row(Text(title, style="bold cyan"))
        for label, value in rows:
            table.add_row(f"  {label}", percent(value), str(value.n))
        table.add_section()
    return table


def evaluation_markdown(record: EvaluationRecord) -> str:
    """The same table as Markdown."""
    lines = ["| | value | cases |", "|---|---:|---:|"]
    for title, rows in _blocks(record):
        lines.append(f"| **{title}** | | |")
        lines += [f"| {label} | {percent(value)} | {value.n} |" for label, value in rows]
    return "\n".join(lines)


def benchmark_markdown(record: EvaluationRecord) -> str:
    """The scores on benchmarks, their mean, and a paper's figures beside them, as Markdown."""
    columns, figures = benchmark_columns(record), record.published
    passes = {name: pass_at_most(record, name) for name in record.benchmarks}
    several = any(one is not None for one in passes.values())
    heads = [*(one.label for one in columns), *(["pass@k"] if several else [])]
    heads += [f"*{markdown(name)}*" for name in figures]
    lines = [
        f"| benchmark | problems | figure | {' | '.join(heads)} |",
        "|---|---:|---|" + "---:|" * len(heads),
    ]
    for name, metric in record.benchmarks.items():
        own = [percent(one.scores[name]) for one in columns]
        if several:
            most = passes[name]
            own.append("–" if most is None else f"{percent(most[1])}, k = {most[0]}")
        published = [_figure(found.get(name)) for found in figures.values()]
        cells = [name, str(len(record.sources.get(name, ()))), metric.replace("_", " "), *own, *published]
        lines.append(f"| {' | '.join(cells)} |")
        rest = [""] * (several + len(figures))
        for category in columns[0].categories.get(name, ()) if columns else ():
            own = [percent(one.categories[name][category]) for one in columns]
            cells = [f"{name}: {category}", str(columns[0].categories[name][category].n), "", *own, *rest]
            lines.append(f"| {' | '.join(cells)} |")
    if len(record.benchmarks) > 1:
        means = [percent(one.mean) for one in columns] + ([""] if several else [])
        means += [_figure(_mean_figure(found, list(record.benchmarks))) for found in figures.values()]
        lines.append(f"| **mean** | | | {' | '.join(means)} |")
    return "\n".join(lines)


def _mean_figure(figures: Mapping[str, float], names: Sequence[str]) -> float | None:
    known = [figures[name] for name in names if name in figures]
    return sum(known) / len(known) if len(known) == len(names) else None


def _figure(value: float | None) -> str:
    return "–" if value is None else f"*{value:.1f} %*"


def source_markdown(record: EvaluationRecord) -> str:
    """The headline's metrics by data source as Markdown; empty where there is one source."""
    found = record.by_source()
    if not found:
        return ""
    names = list(next(iter(found.values())))
    labels = [metric_label(record.metrics, name) for name in names]
    lines = [f"| data source | problems | {' | '.join(labels)} |", "|---|---:|" + "---:|" * len(names)]
    for source, values in found.items():
        cells = [str(len(record.sources[source])), *(percent(values[name]) for name in names)]
        lines.append(f"| {markdown(source)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _blocks(record: EvaluationRecord) -> list[tuple[str, list[tuple[str, Estimate]]]]:
    """Label and estimate of what was measured, sampled and greedily."""
    found, blocks = record.estimates, []
    for title, suffix in ((f"temperature {record.temperature:g}", ""), ("greedy", GREEDY_SUFFIX)):
        rows = []
        for name, info in record.metrics.items():
            if (value := found.get(name + suffix)) is not None:
                rows.append((info.label, value))
                rows += [] if suffix else of_several_answers(record, found, name)
        if rows:
            blocks.append((title, rows))
    return blocks
