"""Tables and sentences made of measured rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from benchmarks.tables import interval, table, with_interval
from benchmarks.throughput.plan import EVALUATION, PLAIN, PLUGIN, Piece, Row

GOAL = 0.7
"""Of the tokens per second of `LLM.generate`."""

Variant = tuple[str, int | None]
"""What was measured, and the engine's threads."""


def by_variant(rows: Iterable[Row], workload: str) -> dict[Variant, list[Row]]:
    """The measured rounds of a workload, without warm-ups."""
    groups: dict[Variant, list[Row]] = defaultdict(list)
    for row in rows:
        if row.round > 0 and row.workload == workload:
            groups[row.variant, row.threads].append(row)
    return groups


def rate(rows: Iterable[Row]) -> float:
    """Tokens per second of several rounds together."""
    rounds = list(rows)
    return sum(row.tokens for row in rounds) / sum(row.seconds for row in rounds)


def rates(rows: Iterable[Row]) -> dict[int, float]:
    """Tokens per second by repeat."""
    parts: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        parts[row.repeat].append(row)
    return {repeat: rate(part) for repeat, part in parts.items()}


def only(groups: dict[Variant, list[Row]], wanted: str = PLUGIN) -> dict[int, float]:
    """Tokens per second by repeat of what was measured with one number of threads; empty: it was not."""
    found = [rows for (variant, _), rows in groups.items() if variant == wanted]
    return rates(found[0]) if found else {}


def titled(variant: Variant) -> str:
    """A variant as the tables name it."""
    name, threads = variant
    return f"{name}, {threads} thread{'' if threads == 1 else 's'}"


def progress(rows: list[Row]) -> str:
    """One line per variant and workload of a process."""
    lines = []
    for workload in dict.fromkeys(row.workload for row in rows):
        for variant, rounds in by_variant(rows, workload).items():
            each = ", ".join(f"{row.tokens_per_second:,.0f}" for row in rounds)
            head = f"repeat {rounds[0].repeat + 1}  {titled(variant):34s} {workload:8s}"
            lines.append(f"{head} {rate(rounds):9,.0f} tokens/s ({each})")
    return "\n".join(lines)


def result_table(rows: list[Row], workload: str) -> str:
    """Tokens per second of every variant, what the plugin makes of it, and lengths."""
    groups = by_variant(rows, workload)
    ours = only(groups)
    evaluated = only(groups, EVALUATION)
    lines = []
    for variant, rounds in groups.items():
        theirs = rates(rounds)
        samples = sum(row.samples for row in rounds)
        lines.append(
            [
                titled(variant),
                with_interval(list(theirs.values()), 0, 1),
                _in_percent(ours, theirs),
                *([_in_percent(evaluated, theirs)] if evaluated else []),
                f"{sum(row.tokens for row in rounds) / samples:.1f}",
                f"{100 * sum(row.finished for row in rounds) / samples:.0f}",
            ]
        )
    title = ["evaluation in % of it"] if evaluated else []
    return table(["variant", "tokens/s", "plugin in % of it", *title, "tokens/sample", "ended %"], lines)


def _in_percent(ours: dict[int, float], theirs: dict[int, float]) -> str:
    return with_interval([100 * ours[repeat] / one for repeat, one in theirs.items()], 0, 1)


def processor_table(rows: list[Row], workload: str) -> str:
    """Where wall and processor time go."""
    lines = []
    for variant, rounds in by_variant(rows, workload).items():
        by_kind: dict[str, float] = defaultdict(float)
        for row in rounds:
            for kind, seconds in row.processor_seconds.items():
                by_kind[kind] += seconds
        if not by_kind:
            continue
        samples, wall = sum(row.samples for row in rounds), sum(row.seconds for row in rounds)
        lines.append([titled(variant), "wall time", f"{1000 * wall / samples:.3f}"])
        for kind, seconds in sorted(by_kind.items(), key=lambda item: -item[1]):
            lines.append(["", kind, f"{1000 * seconds / samples:.3f}"])
        lines.append(["", "cores busy, all processes", f"{sum(by_kind.values()) / wall:.2f}"])
    return table(["variant", "processor time of", "ms per sample"], lines)


def piece_table(pieces: list[Piece], workload: str) -> str:
    """Pieces of work beside the engine, each done alone."""
    groups: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if piece.workload == workload:
            groups[piece.name].append(piece)
    lines = []
    for name, group in groups.items():
        size = group[0].kilobytes_per_sample
        times = with_interval([piece.milliseconds_per_sample for piece in group], 3, 1)
        lines.append([name, times, "" if size is None else f"{size:.2f}"])
    return table(["piece, alone in one thread", "ms per sample", "kB per sample"], lines)


def verdict(rows: list[Row], workload: str) -> str:
    """Whether the goal is reached, against the fastest plain `LLM.generate`."""
    groups = by_variant(rows, workload)
    ours = only(groups)
    plain = {variant: rounds for variant, rounds in groups.items() if variant[0] == PLAIN}
    best = max(plain, key=lambda variant: rate(plain[variant]))
    theirs = rates(plain[best])
    mean, half = interval([100 * ours[repeat] / theirs[repeat] for repeat in ours])
    spread = "" if math.isnan(half) else f" ± {half:.0f}"
    goal, half = 100 * GOAL, 0.0 if math.isnan(half) else half
    known = "reached" if mean - half >= goal else "missed" if mean + half < goal else "inside the interval"
    return (
        f"{workload}: the plugin makes {mean:.0f}{spread} % of the tokens per second of {titled(best)}; the "
        f"goal of {goal:.0f} % is {known}"
    )
