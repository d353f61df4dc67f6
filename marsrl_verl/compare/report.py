"""`report.md`: the tables of a comparison, and how they came about."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from marsrl_verl.compare.curves import SMOOTHED, Curve, area, final_level, reached
from marsrl_verl.compare.results import Finished, by_method, metrics_of, over_seeds, start_over_seeds
from marsrl_verl.compare.runner import Failed, duration
from marsrl_verl.compare.statistics import CONFIDENCE, t_interval
from marsrl_verl.compare.suite import Suite
from marsrl_verl.compare.tables import (
    counted_seeds,
    differences_table,
    fewest_cases,
    grid_table,
    outcomes_of,
    percent,
    table_of,
    verdict_table,
)
from marsrl_verl.evaluation.estimators import FEW, GREEDY_SUFFIX, Estimate, MetricInfo, metric_label
from marsrl_verl.evaluation.suite import AFTER, BEFORE


def report_markdown(
    suite: Suite, seeds: int, finished: Sequence[Finished], failed: Sequence[Failed], picture: str | None
) -> str:
    """The text of `report.md`, with the name of the picture's file where there is one."""
    sections = [f"# {suite.title}", _about(suite, seeds, finished)]
    if picture is not None:
        sections.append(f"![{suite.title}]({picture})")
    if finished:
        sections += ["## After training", _quality(finished, seeds)]
        outcomes, metrics = outcomes_of(suite, finished), metrics_of(finished)
        if suite.judged:
            table = verdict_table(suite, outcomes, metrics)
            sections += ["## Primary outcomes", _primary(suite, table)]
        if suite.grid is not None:
            table = grid_table(suite, suite.grid, seeds, outcomes, metrics)
            sections += [f"## Values of `{suite.grid.setting}`", _search(suite, table, metrics)]
        sections += ["## Differences", _differences(finished)]
        sections += ["## While training", _training(suite, finished, seeds)]
        sections += ["## What it took", _cost(finished, seeds)]
    if failed:
        sections += ["## Runs without a result", _failures(failed)]
    sections += ["## Methods", _methods(suite)]
    if finished:
        sections += ["## Metrics", _meanings(finished)]
    return "\n\n".join(sections) + "\n"


def _about(suite: Suite, seeds: int, finished: Sequence[Finished]) -> str:
    problems = sorted({one.problems for one in finished if one.problems is not None})
    count = " or ".join(str(number) for number in problems) or "the"
    last = suite.first_seed + seeds - 1
    text = (
        f"Every run ends after the training step that reaches {suite.budget}. "
        f"Mean over n = {seeds} seed{'s' if seeds > 1 else ''} ({suite.first_seed}"
        f"{f' to {last}' if seeds > 1 else ''}) with the {100 * CONFIDENCE:g} % t interval "
        f"(n - 1 degrees of freedom, not cut at 0 and 100 %), measured on {count} held-out problems, which "
        "are the same in all runs: the intervals speak of repeated training, not of other problems. Where a "
        f"run has fewer than {FEW} cases behind its figure, the fewest of them stand beside it."
    )
    measured = metrics_of(finished)
    unknown = [name for name in suite.headline if name.removesuffix(GREEDY_SUFFIX) not in measured]
    if finished and unknown:
        text += f" No run measures {', '.join(unknown)}, which the suite's headline names."
    return f"{text}\n\n{suite.note}" if suite.note else text


def _quality(finished: Sequence[Finished], seeds: int) -> str:
    methods = by_method(finished)
    lines: list[list[str]] = []
    for suffix, title in (("", "sampled"), (GREEDY_SUFFIX, "greedy")):
        named = {base + suffix: info for base, info in metrics_of(finished).items()}
        if not any(one.value(f"{AFTER}/{name}") is not None for one in finished for name in named):
            continue
        lines.append([f"**{title}**", *[""] * (len(methods) + 1)])
        for name, info in named.items():
            start = start_over_seeds(finished, name)
            starts = over_seeds(finished, f"{BEFORE}/{name}")
            cells = ["by method" if start is None else percent(start, seeds)]
            for method, value in over_seeds(finished, f"{AFTER}/{name}").items():
                fewest = fewest_cases(methods[method], f"{AFTER}/{name}")
                few = f", {fewest} cases" if fewest is not None and fewest < FEW else ""
                since = f", from {percent(starts[method], seeds)}" if start is None else ""
                cells.append(percent(value, seeds) + few + since)
            lines.append([info.label, *cells])
    return table_of(["", "start", *methods], lines)


def _differences(finished: Sequence[Finished]) -> str:
    methods = list(by_method(finished))
    if len(methods) < 2:
        return "There is one method."
    metrics = metrics_of(finished)
    unlike = ", ".join(info.label for info in metrics.values() if info.follows_errors)
    never = f" {unlike} are never bold: they follow how many and which errors each method's own runs leave."
    return (
        f"{differences_table(finished, metrics)}\n\n"
        f"Percentage points after training, less {methods[0]} of "
        f"the same seed: mean and {100 * CONFIDENCE:g} % t interval of these differences, and p of the exact "
        "sign-flip test (two-sided) where the seeds are enough for it to fall below "
        f"{1 - CONFIDENCE:.2g}. Bold where the interval leaves out 0 and every figure rests on {FEW} cases "
        f"or more; of so many differences some do by chance.{never if unlike else ''}"
    )


def _primary(suite: Suite, table: str) -> str:
    """Verdicts on what the suite named before it ran."""
    if not table:
        return "No two methods that are judged against each other have a run."
    return table + (
        "\n\nIn percentage points, above 0 where the first of the two is better: mean of the "
        f"differences of equal seeds, its {100 * CONFIDENCE:g} % t interval, the bootstrap's (studentised), "
        "p of the sign-flip test after Holm's method for all lines together. Equivalent: two one-sided tests "
        f"find the difference within ±{100 * suite.margin:g}. Not decided: the difference that so many seeds "
        "would show with 80 % power stands beside it, or how many seeds it takes to show any."
    )


def _search(suite: Suite, table: str, metrics: Mapping[str, MetricInfo]) -> str:
    """Describes with which value each method did best."""
    outcomes = " and ".join(metric_label(metrics, one) for one in suite.primary)
    return table + (
        f"\n\n{outcomes}{', their mean' if len(suite.primary) > 1 else ''}, over the seeds. A value that "
        "lacks a seed is no best one. A best value at the edge of the grid says that a better one may lie "
        "beyond."
    )


def _training(suite: Suite, finished: Sequence[Finished], seeds: int) -> str:
    """Areas under the curves, when they came to a level, and the suite's figures."""
    metric, budget = suite.curve, suite.budget.amount
    curves = {one.run: one.curve.points for one in finished}
    levels = {run.seed: final_level(curve) for run, curve in curves.items() if run.method == suite.level_of}
    head = ["", f"area under `{metric}`", *([f"level of {suite.level_of} after"] if suite.level_of else [])]
    head += [f"`{name}`" for name in suite.figures]
    rows = []
    for method, some in by_method(finished).items():
        areas = [area(curves[one.run], budget) for one in some]
        cells = [method, percent(t_interval(areas), seeds)]
        if suite.level_of:
            pairs = [(curves[one.run], levels.get(one.run.seed)) for one in some]
            cells.append(_level(pairs, budget, seeds))
        figures = [t_interval(one.figures.get(name) for one in some) for name in suite.figures]
        rows.append([*cells, *(_figure(one, seeds) for one in figures)])
    text = f"Area: the curve's mean height over the {suite.budget}."
    if lost := max(one.curve.excluded for one in finished):
        text += (
            f" {lost} evaluations of each run are not in it: those in between had fewer problems, and "
            f"`{metric}` is not known by problem."
        )
    if suite.level_of:
        text += (
            f" Level: the share of the budget that had been taken when the mean of the curve's last "
            f"{SMOOTHED} points first came to where that of {suite.level_of} of the same seed ended; the "
            "whole budget for a run that never came there, and how many came there."
        )
    if suite.figures:
        text += " The other columns are means over the training steps."
    logged = {name for one in finished for name, value in one.figures.items() if value is not None}
    if unknown := [name for name in suite.figures if name not in logged]:
        text += f" No run logs {', '.join(unknown)}, which the suite's figures name."
    return f"{table_of(head, rows)}\n\n{text}"


def _level(pairs: Sequence[tuple[Curve, float | None]], budget: int, seeds: int) -> str:
    found = [reached(curve, level, budget) for curve, level in pairs if level is not None]
    known = [one for one in found if one is not None]
    if not known:
        return "–"
    share = percent(t_interval([one.share for one in known]), seeds)
    return f"{share}, {sum(one.reached for one in known)} of {len(known)} came there"


def _figure(value: Estimate, seeds: int, mean_format: str = ".3g", half_format: str = ".2g") -> str:
    """A mean and half of its interval, in these formats."""
    if value.mean is None:
        return "–"
    interval = "" if value.high is None else f" ± {value.high - value.mean:{half_format}}"
    return f"{value.mean:{mean_format}}{interval}{counted_seeds(value, seeds)}"


def _cost(finished: Sequence[Finished], seeds: int) -> str:
    figures: dict[str, Callable[[Finished], float | None]] = {
        "steps": lambda one: one.steps,
        "updates": lambda one: one.updates,
        "trained samples": lambda one: one.trained_rows,
        "in an update": lambda one: _ratio(one.trained_rows, one.updates),
        "generated tokens": lambda one: one.generated_tokens,
        "tool calls": lambda one: one.executed_tool_calls,
        "seconds of training steps": lambda one: one.step_seconds,
        "seconds in all": lambda one: one.seconds,
    }
    rows = [
        [method, *(_figure(t_interval(map(one, some)), seeds, ",.0f", ",.0f") for one in figures.values())]
        for method, some in by_method(finished).items()
    ]
    taken = [Path(one.copied_from) for one in finished if one.copied_from is not None]
    copies = f", {len(taken)} of them taken from {_places(taken)}" if taken else ""
    if len({one.source for one in finished}) > 1:
        copies += ", made by more than one version of the source"
    versions = {f"{name} {number}" for one in finished for name, number in one.versions.items()}
    total = duration(sum(one.seconds for one in finished))
    facts = f"{len(finished)} runs{copies}, {total} together; this page was written on {platform.platform()}"
    table = table_of(["", *figures], rows)
    return f"{table}\n\n{facts}; {', '.join(sorted(versions)) or 'versions unknown'}."


def _places(paths: Iterable[Path]) -> str:
    """The records, and the folders of comparisons whose runs were taken."""
    names = (path.name if path.suffix == ".json" else path.parent.parent.name for path in paths)
    return ", ".join(f"`{name}`" for name in sorted(set(names)))


def _ratio(first: float | None, second: float | None) -> float | None:
    return first / second if first is not None and second else None


def _failures(failed: Sequence[Failed]) -> str:
    parts = []
    for one in failed:
        fence = "````" if "```" in one.tail else "```"
        head = f"{one.run.name}: {one.reason} (log: `{one.run.log_path}`)"
        parts.append(f"{head}\n\n{fence}\n{one.tail}\n{fence}")
    return "\n\n".join(parts)


def _methods(suite: Suite) -> str:
    lines = [f"- {name}: `{' '.join(words) or '(the default)'}`" for name, words in suite.methods.items()]
    return "\n".join(lines) + f"\n\nAll of them: `{' '.join(suite.overrides) or '(nothing)'}`."


def _meanings(finished: Sequence[Finished]) -> str:
    def line(info: MetricInfo) -> str:
        return f"- {info.label}: {info.meaning}{'' if info.higher_is_better else ' (lower is better)'}"

    return "\n".join(line(info) for info in metrics_of(finished).values())
