"""What two checkouts make of the same rounds, repeat by repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from benchmarks.checkouts import AFTER, BEFORE
from benchmarks.tables import table, with_interval
from benchmarks.throughput.plan import PLAIN, PLUGIN, SAME_WORK, SERVER, Row
from benchmarks.throughput.tables import by_variant, rate

REFERENCE = "LLM.generate"
"""The process that both are compared with, in the place of a checkout."""

Values = dict[int, float]
"""By repeat."""


def _of(rows: list[Row], workload: str, checkout: str, variant: str) -> dict[int, list[Row]]:
    chosen = [row for row in rows if (row.checkout, row.variant) == (checkout, variant)]
    found: dict[int, list[Row]] = defaultdict(list)
    for rounds in by_variant(chosen, workload).values():
        for row in rounds:
            found[row.repeat].append(row)
    return found


def _per_sample(rounds: list[Row], kind: str | None = None) -> float:
    """Milliseconds of processor time of a kind of process, or of all."""
    spent = sum(sum(one.processor_seconds.values()) if kind is None else one.processor_seconds.get(kind, 0)
                for one in rounds)  # fmt: skip
    return 1000 * spent / sum(one.samples for one in rounds)


def _shown(values: Values, digits: int = 0) -> str:
    return with_interval(list(values.values()), digits, 1) if values else ""


def _paired(values: Values, others: Values, how: Callable[[float, float], float]) -> Values:
    return {repeat: how(values[repeat], others[repeat]) for repeat in values if repeat in others}


def throughput_table(rows: list[Row], workload: str) -> str:
    """Tokens per second of both, alone and in % of `LLM.generate` of the same repeat, and the ratios of the
    pairs."""
    lines = []

    def add(title: str, before: Values, after: Values) -> None:
        ratios = _paired(after, before, lambda one, other: one / other)
        lines.append([title, _shown(before), _shown(after), _shown(ratios, 3)])

    def rates(checkout: str, variant: str) -> Values:
        return {at: rate(rounds) for at, rounds in _of(rows, workload, checkout, variant).items()}

    plugin = [rates(one, PLUGIN) for one in (BEFORE, AFTER)]
    add("plugin, tokens/s", *plugin)
    add("server alone, tokens/s", rates(BEFORE, SERVER), rates(AFTER, SERVER))
    for variant in (PLAIN, SAME_WORK):
        reference = rates(REFERENCE, variant)
        lines.append([f"{variant}: tokens/s", _shown(reference), "", ""])
        add(
            f"plugin in % of {variant}",
            *(_paired(one, reference, lambda ours, theirs: 100 * ours / theirs) for one in plugin),
        )
    return table(["", BEFORE, AFTER, f"{AFTER} / {BEFORE}, pairs"], lines)


def processor_table(rows: list[Row], workload: str) -> str:
    """Processor milliseconds per sample by kind of process, and the differences of the pairs."""
    lines = []
    for variant in (PLUGIN, SERVER):
        before, after = (_of(rows, workload, one, variant) for one in (BEFORE, AFTER))
        rounds = [row for part in (before, after) for some in part.values() for row in some]
        total: dict[str, float] = defaultdict(float)
        for row in rounds:
            for kind, seconds in row.processor_seconds.items():
                total[kind] += seconds
        every: list[str | None] = [*sorted(total, key=lambda one: -total[one]), None]
        for one_kind in every:
            old, new = (
                {at: _per_sample(some, one_kind) for at, some in part.items()} for part in (before, after)
            )
            change = _paired(new, old, lambda one, other: one - other)
            title = f"{variant}: {one_kind or 'all processes'}"
            lines.append([title, *(_shown(one, 3) for one in (old, new, change))])
    for variant in (PLAIN, SAME_WORK):
        found = _of(rows, workload, REFERENCE, variant)
        lines.append([variant, _shown({at: _per_sample(some) for at, some in found.items()}, 3), "", ""])
    return table(["processor time, ms per sample", BEFORE, AFTER, f"{AFTER} - {BEFORE}, pairs"], lines)
