"""Answers or grades that are on record: filtering without a model.

JSON lines, one or more per problem. A line names its problem by `problem` (the hash that a grade log has)
or by `question`, and holds `grades` (numbers, or the objects of a grade log) or `responses` (text, which
is then graded), with `finish` how each response ended (`stop`, `length`; all `stop` where it is left out). A
line with `settings` alone, as a grade log begins with, goes into the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.data.problems import Instruction, SourceProblem, problem_key
from marsrl_verl.data.rows import DataError, RowError, read_rows
from marsrl_verl.data_preparation.grades import Grade, ProblemGrades

_FIELDS = ("problem", "question", "ground_truth", "grades", "responses", "finish", "settings")
GradeTexts = Callable[[SourceProblem, list[tuple[str, FinishReason]]], list[Grade]]
"""Grades the responses of one problem, each given with how it ended."""


@dataclass(slots=True)
class Recorded:
    """Content of a file about the problems."""

    grades: dict[str, ProblemGrades] = field(default_factory=dict)
    """Grades by problem."""
    settings: dict[str, Any] | None = None
    """Settings at the beginning of a grade log."""
    other_problems: int = 0
    """Lines about problems that are not in the source."""
    graded_here: bool = False
    """True if a line had responses, which the configured reward graded."""


def read_recorded(
    path: Path, problems: dict[str, SourceProblem], instruction: Instruction | None, grade_texts: GradeTexts
) -> Recorded:
    """The answers or grades of a file about the source's problems; `grade_texts` is called for lines with
    responses, the instruction taken off its questions as in the source.

    Raises:
        DataError: a line is none of the kind, or was graded against another reference.
    """
    found = Recorded()
    by_question: dict[str, list[str]] = {}
    for one in problems.values():
        by_question.setdefault(problem_key(one.question), []).append(one.key)
    parts: dict[str, list[Grade]] = {}
    for row in read_rows([path], _FIELDS):
        if isinstance(row.data, RowError):
            raise DataError(f"{row.place}: {row.data.what}.", f"{row.data.fix}.")
        if isinstance(row.data.get("settings"), dict):
            found.settings = row.data["settings"]
            continue
        problem = problems.get(_key(row.data, row.place, instruction, by_question))
        if problem is None:
            found.other_problems += 1
            continue
        if "grades" in row.data:
            check_reference(str(row.data.get("ground_truth") or ""), problem, row.place)
        found.graded_here |= not row.data.get("grades")
        parts.setdefault(problem.key, []).extend(_grades(row.data, row.place, problem, grade_texts))
    found.grades = {
        key: ProblemGrades(key, tuple(grades), problems[key].question, problems[key].problem.ground_truth)
        for key, grades in parts.items()
    }
    return found


def _key(
    data: dict[str, Any], place: str, instruction: Instruction | None, by_question: dict[str, list[str]]
) -> str:
    """The problem's hash; that of the bare question where the source has no such problem."""
    key, question = data.get("problem"), data.get("question")
    if isinstance(key, str):
        return key
    if not isinstance(question, str):
        raise DataError(f"{place}: it names no problem.", "Give the line a `question` or a `problem`.")
    bare = instruction.strip(question) if instruction is not None else None
    named = problem_key(question if bare is None else bare)
    keys = by_question.get(named, [named])
    if len(keys) > 1:
        what = f"{place}: {len(keys)} problems of the source have this question, in different chats."
        raise DataError(what, f"Name the problem by its hash: `problem`, one of {', '.join(keys)}.")
    return keys[0]


def check_reference(recorded: str, problem: SourceProblem, where: str) -> None:
    """Refuses grades that were given against another reference answer (DataError)."""
    if recorded and recorded != problem.problem.ground_truth:
        raise DataError(
            f"{where}: its answers were graded against {recorded!r}, and {problem.place} now has "
            f"{problem.problem.ground_truth!r}.",
            "Remove the line, so that its problem is graded again, or restore the answer.",
        )


def _grades(
    data: dict[str, Any], place: str, problem: SourceProblem, grade_texts: GradeTexts
) -> Iterable[Grade]:
    if data.get("grades"):
        try:
            return ProblemGrades.from_json({**data, "problem": problem.key}).grades
        except (KeyError, TypeError, ValueError) as error:
            what = f"{place}: its grades can't be read ({error})."
            raise DataError(what, "Write numbers between 0 and 1.") from error
    responses = data.get("responses")
    if isinstance(responses, list) and responses and all(isinstance(text, str) for text in responses):
        reasons = _finish_reasons(data.get("finish"), len(responses), place)
        return grade_texts(problem, list(zip(responses, reasons, strict=True)))
    what = f"{place}: it holds neither grades nor responses."
    raise DataError(what, "Give the line `grades` (numbers) or `responses` (text), as lists.")


def _finish_reasons(values: Any, count: int, place: str) -> list[FinishReason]:
    """Returns the finish reasons of a line's responses."""
    if values is None:
        return [FinishReason.STOP] * count
    known = [reason.value for reason in FinishReason]
    if not isinstance(values, list) or len(values) != count or any(one not in known for one in values):
        what = f"{place}: `finish` is {values!r}, expected {count} of: {', '.join(known)}."
        fix = "Give one for each of `responses`, or leave it out: all of them ended by themselves then."
        raise DataError(what, fix)
    return [FinishReason(one) for one in values]
