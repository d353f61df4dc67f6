"""One readable example of a problem going through an evaluated system."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marsrl_verl.core.sanitize import code_block, code_span, one_line, printable
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.evaluation.runs import Call, Evaluation, ExampleSummary, Run, Runs

_LONGEST_ANSWER = 200
"""Characters of an answer that are shown."""


@dataclass(frozen=True, slots=True)
class Example:
    """A chosen run and what it shows."""

    evaluation: Evaluation
    run: Run
    summary: ExampleSummary

    def outcome(self, call: Call, quote: Callable[[str], str]) -> str:
        """Describes the outcome of one call in a few words."""
        return self.evaluation.outcome(call, lambda answer: quote(_cut(answer, _LONGEST_ANSWER)))


def pick_example(evaluation: Evaluation, runs: Runs) -> Example | None:
    """The most telling run; among equals the one with the fewest calls, then the shortest text, then the
    first. None without runs."""
    if not runs.runs:
        return None
    summaries = [evaluation.example_summary(run) for run in runs.runs]

    def rank(index: int) -> tuple[int, int, int, int]:
        calls = runs.runs[index].calls
        length = sum(len(call.trajectory.text) for call in calls)
        return (-summaries[index].rank, len(calls), length, index)

    best = min(range(len(summaries)), key=rank)
    return Example(evaluation, runs.runs[best], summaries[best])


def example_markdown(example: Example, limit: int = 4000) -> str:
    """The example as Markdown; responses longer than `limit` characters are cut in the middle."""
    run, evaluation = example.run, example.evaluation
    parts = [
        f"{example.summary.headline}.",
        f"**Problem** {code_span(run.problem.problem_id)} "
        f"(reference answer: {code_span(run.problem.ground_truth)})",
        code_block(run.problem.question),
    ]
    for number, call in enumerate(run.calls, 1):
        parts.append(f"**{number}. {evaluation.example_call(call)}**: {example.outcome(call, code_span)}")
        parts.append(code_block(_cut(_response(call.trajectory), limit)))
    parts.append(f"**Result**: {evaluation.result(run)}")
    return "\n\n".join(parts)


def example_text(example: Example, limit: int = 1200) -> str:
    """The example as plain text for a terminal."""
    run, evaluation = example.run, example.evaluation
    reference = one_line(run.problem.ground_truth)
    lines = [f"{example.summary.headline}.", "", f"Problem (reference answer: {reference})"]
    lines.append(_indent(run.problem.question))
    for number, call in enumerate(run.calls, 1):
        outcome = example.outcome(call, lambda answer: f"`{one_line(answer)}`")
        lines += ["", f"{number}. {evaluation.example_call(call)}: {outcome}"]
        lines.append(_indent(_cut(_response(call.trajectory), limit)))
    lines += ["", f"Result: {evaluation.result(run)}"]
    return "\n".join(lines)


def _response(trajectory: Trajectory) -> str:
    return trajectory.text.strip() or "(empty)"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in printable(text).split("\n"))
