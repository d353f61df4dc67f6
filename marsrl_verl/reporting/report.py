"""The end of a run: `summary.json`, the pictures, `report.md` and `report.html`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from marsrl_verl.core.sanitize import markdown
from marsrl_verl.evaluation.benchmark_scores import answers_differ
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX, Estimate
from marsrl_verl.evaluation.runs import Runs
from marsrl_verl.evaluation.suite import AFTER, BEFORE, EvaluationRecord, EvaluationResult
from marsrl_verl.reporting.curve import draw_learning_curve, draw_role_panels
from marsrl_verl.reporting.example import Example, example_markdown, pick_example
from marsrl_verl.reporting.files import write_json_atomic
from marsrl_verl.reporting.html import write_report
from marsrl_verl.reporting.metrics_log import read_metrics
from marsrl_verl.reporting.pictures import draw_pictures
from marsrl_verl.reporting.run_folder import RunFolder, read_evaluations
from marsrl_verl.reporting.summary import Change, RunFacts, build_summary, changes, evaluation_summary
from marsrl_verl.reporting.tables import (
    benchmark_markdown,
    evaluation_markdown,
    markdown_table,
    percent,
    source_markdown,
    verdict_rule,
)

_CURVE = (
    "The training curve shows training samples, whose mix of inputs the selection of the method shifts; it "
    "is no accuracy on held-out problems."
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Results that the end of a run shows."""

    changes: list[Change]
    example: Example | None
    after: EvaluationRecord | None


def finish_run(
    folder: RunFolder, facts: RunFacts, last: EvaluationResult | None, roles: Sequence[str] = ()
) -> RunResult:
    """Writes summary, picture and report from the metrics and the records of the evaluations `before` and
    `after` that the folder holds, as far as done; `last` is the evaluation after training, for the
    example."""
    records = {record.tag: record for record in read_evaluations(folder.path)}
    before, after = records.get(BEFORE), records.get(AFTER)
    if after is not None and after.step != facts.steps:
        # An earlier end's, of a run that was resumed and not evaluated since.
        note = {"last evaluation": f"after step {after.step}, not at the end"}
        facts, after = replace(facts, extra={**facts.extra, **note}), None
    example = None if last is None else pick_example(last.evaluation, last.passes[0])
    write_json_atomic(folder.summary_path, build_summary(before, after, facts))
    title = f"{facts.method} · {facts.name} · {facts.mode}, seed {facts.seed}"
    draw_learning_curve(folder.curve_path, read_metrics(folder.path), list(records.values()), title, roles)
    shown = [f"![Learning curve]({folder.curve_path.name})"]
    by_role = folder.path / "pictures" / "roles.png"
    if draw_role_panels(by_role, read_metrics(folder.path), roles):
        shown.append(f"![By role](pictures/{by_role.name})")
    rows = changes(before, after)
    pictures = "" if last is None else _pictures(folder, last)
    text = report_markdown(rows, before, after, facts, example, "\n\n".join(shown), pictures)
    write_report(folder.report_path, text)
    return RunResult(rows, example, after)


def finish_evaluation(folder: RunFolder, facts: RunFacts, result: EvaluationResult) -> None:
    """Writes summary, pictures and report of a run that is one evaluation."""
    record = result.record
    pictures, example = _pictures(folder, result), pick_example(result.evaluation, result.passes[0])
    write_json_atomic(folder.summary_path, evaluation_summary(record, facts))
    sections = [
        f"# Evaluation: {markdown(facts.name)}",
        *alone_markdown(record),
        *_warnings(facts),
        effort_markdown(result),
    ]
    if pictures:
        sections += ["## Pictures", pictures]
    if example is not None:
        sections += ["## An example", example_markdown(example)]
    sections += ["## The run", _facts(facts), "## What was measured, and how", method_markdown(record)]
    write_report(folder.report_path, "\n\n".join(sections) + "\n")


def _pictures(folder: RunFolder, result: EvaluationResult) -> str:
    """Draws those of the sampled pass, or else of the greedy one; the Markdown that shows them."""
    runs, record = result.passes[0], result.record
    shown = draw_pictures(folder.path, result.evaluation.pictures(runs, record.confidence))
    how = f"temperature {record.temperature:g}" if record.samples_per_problem else "greedy"
    return f"{shown}\n\nBars: {100 * record.confidence:g} % intervals over problems; {how}." if shown else ""


def _warnings(facts: RunFacts) -> list[str]:
    lines = "\n".join(f"- {markdown(one)}" for one in facts.warnings)
    return ["## Warnings", lines] if lines else []


def effort_markdown(result: EvaluationResult) -> str:
    """A table of costs of a run in each pass, and of finish reasons by role."""
    record = result.record
    sampled = f"temperature {record.temperature:g}"
    lines = ["| | what a run took |", "|---|---|"]
    for runs in result.passes:
        greedy = runs is result.greedy
        suffix = GREEDY_SUFFIX if greedy else ""
        lines.append(f"| **{'greedy' if greedy else sampled}** | |")
        for name, value in record.effort.items():
            base = name.removesuffix(GREEDY_SUFFIX)
            if name == f"{base}{suffix}" and value.n:
                shown = percent(value) if base.endswith("_frac") else _mean(value)
                lines.append(f"| {markdown(base.removesuffix('_frac').replace('_', ' '))} | {shown} |")
        for role, ends in _ends(runs).items():
            told = ", ".join(f"{name} {count:,}" for name, count in ends.most_common())
            lines.append(f"| {markdown(role)}: responses ended by | {told} |")
    return "\n".join(lines)


def _ends(runs: Runs) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for call in runs.all_calls:
        found.setdefault(call.request.role, Counter())[call.trajectory.finish.value] += 1
    return found


def _mean(value: Estimate) -> str:
    interval = "" if value.low is None or value.high is None else f" [{value.low:,.1f}, {value.high:,.1f}]"
    return f"{value.mean:,.1f}{interval}"


def alone_markdown(record: EvaluationRecord) -> list[str]:
    """The tables of an evaluation alone, and how they are read."""
    how = f"Mean and {100 * record.confidence:g} % interval."
    if not record.benchmarks:
        return [evaluation_markdown(record), *_by_source(record), how]
    together = [f"All {record.problems:,} problems together:"] if len(record.benchmarks) > 1 else []
    if together and answers_differ(record):
        together = [f"{together[0][:-1]}; a benchmark with more answers to each counts more:"]
    return [*_by_source(record), how, *together, evaluation_markdown(record)]


def report_markdown(
    rows: list[Change],
    before: EvaluationRecord | None,
    after: EvaluationRecord | None,
    facts: RunFacts,
    example: Example | None,
    curves: str,
    pictures: str = "",
) -> str:
    """The text of `report.md`; `curves` shows pictures of training, `pictures` those of the evaluation after
    it."""
    record = after or before
    heading = f"# {markdown(facts.method)}: {markdown(facts.name)}"
    sections = [heading, result_markdown(rows, record), curves]
    sections += _warnings(facts)
    if record is not None and record.sources:
        sections += [f"## By data source, {record.tag}", *_by_source(record)]
    if pictures:
        sections += ["## Pictures after training", pictures]
    if example is not None:
        sections += ["## An example after training", example_markdown(example)]
    sections += ["## The run", _facts(facts)]
    if record is not None:
        sections += ["## What was measured, and how", method_markdown(record), _CURVE]
    return "\n\n".join(sections) + "\n"


def _by_source(record: EvaluationRecord) -> list[str]:
    """The table of benchmarks, or of data sources where there are several."""
    if record.benchmarks:
        return [benchmark_markdown(record)]
    return [source_markdown(record)] if record.sources else []


def result_markdown(rows: list[Change], record: EvaluationRecord | None) -> str:
    """The table of changes, and how it is read."""
    if record is None:
        return "This run was not evaluated."
    how = f"Mean and {100 * record.confidence:g} % interval; the change is paired by problem."
    return f"{markdown_table(rows, record.temperature)}\n\n{how} {verdict_rule(rows)}"


def _facts(facts: RunFacts) -> str:
    pairs: list[tuple[str, object]] = [
        ("pipeline", facts.mode),
        ("seed", facts.seed),
        ("training steps", facts.steps),
        ("wall clock", f"{facts.seconds:.0f} s"),
        *([("tokens generated for training", f"{facts.training_tokens:,}")] if facts.training_tokens else []),
        *facts.extra.items(),
        *((f"{name} version", version) for name, version in facts.versions.items()),
    ]
    return facts_table(pairs)


def facts_table(pairs: Iterable[tuple[str, object]]) -> str:
    """Labels and values as Markdown."""
    rows = [f"| {markdown(label)} | {markdown(value)} |" for label, value in pairs]
    return "\n".join(["| | |", "|---|---|", *rows])


def method_markdown(record: EvaluationRecord) -> str:
    """Describes what each figure of an evaluation means, and how it was measured."""
    found = record.estimates
    measured = [
        info for name, info in record.metrics.items() if name in found or name + GREEDY_SUFFIX in found
    ]
    text = "\n".join(f"- **{info.label}**: {info.meaning}." for info in measured)
    passes = "once at temperature 0"
    if record.samples_per_problem:
        sampled = f"{record.samples_per_problem} time(s) at temperature {record.temperature:g}"
        passes = f"{sampled} and, in the greedy rows, {passes}"
    return (
        f"{text}\n\nEach of {record.problems} held-out problems was run {passes}. "
        f"{record.description} An unfinished answer is incorrect.\n\n"
        "Intervals: Wilson's score interval where every problem gives one observation, else at the effective "
        "sample size of observations clustered by problem. Changes: Newcombe's hybrid score interval for "
        "paired proportions, clustered by problem."
    )
