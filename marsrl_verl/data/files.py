"""Reading data files in verl's format, as a check: what no run could use, and what its user should know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marsrl_verl.core.prompts import NO_PROBLEM
from marsrl_verl.core.request import Problem
from marsrl_verl.data.columns import Columns, value_at
from marsrl_verl.data.problems import (
    Fault,
    SourceProblem,
    note_fault,
    read_problem,
    same_reference,
    user_text,
)
from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import DataError, Row, RowError, parquet_columns, read_rows

MAX_NAMED_ROWS = 5

Seen = dict[str, tuple[str, str]]
"""Reference and place of each problem by its key (`data.problems.problem_key`)."""


@dataclass(slots=True)
class PromptLengths:
    """Finds the problems with a prompt that exceeds its role's limit (`Method.opening_prompts`)."""

    measure: Callable[[Problem], Mapping[str, int]]
    """Tokens of a problem's prompts by role, counted by the model's tokenizer; within the limit an upper
    bound is enough."""
    limits: Mapping[str, int]
    """`max_prompt_tokens` by role."""

    def over(self, problem: Problem) -> dict[str, int]:
        """Tokens of the prompts that exceed their role's limit, by role."""
        found = self.measure(problem)
        return {role: tokens for role, tokens in found.items() if tokens > self.limits[role]}


@dataclass(frozen=True, slots=True)
class Remark:
    """Something in a row that the configuration can't use, or hardly as its user means it; the same for rows
    with the same fault."""

    key: str
    """The setting that it is about."""
    what: str
    fix: str
    refused: bool = False
    """True if no run can use such a row; otherwise it is a warning."""


@dataclass(slots=True)
class FileReport:
    """Content of one data file."""

    path: Path
    split: str
    """`train` or `val`."""
    rows: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    """Rows that are no problem with an answer, by what is wrong with them."""
    shortest_problem: Problem | None = None
    """The one of which prompts show the fewest characters."""
    longest_question: str = ""
    """The question with the most characters."""
    longest_problem: Problem = NO_PROBLEM
    """The one whose chat has the most characters, all of its messages together."""
    problems: Seen = field(default_factory=dict)
    """Problems that the file has first of its split."""
    duplicates: int = 0
    """Rows with a problem of an earlier row of the split."""
    contradictions: list[tuple[str, str]] = field(default_factory=list)
    """Places of an earlier row and of one with its problem and another answer."""
    repaired: int = 0
    """Rows with LaTeX commands that were repaired (`data.repair`)."""
    too_long: int | None = None
    """Rows with a prompt that exceeds its role's limit; None: they were not measured."""
    longest_prompts: dict[str, int] = field(default_factory=dict)
    """Tokens of the longest one of these prompts, by role."""
    with_system: int = 0
    """Rows whose chat has a system message of its own."""
    remarks: dict[Remark, Fault] = field(default_factory=dict)
    """Rows that are problems with an answer, and that something speaks against."""
    row_texts: dict[str, str] = field(default_factory=dict)
    """Longest texts (in characters) that prompts show beside the question (`Prompts.row_texts`)."""

    @property
    def prompted(self) -> int:
        """Rows whose problem is used for prompts."""
        return self.rows - (self.too_long or 0)


def chat_characters(problem: Problem) -> int:
    """Returns the characters of all messages of the data's chat together."""
    return sum(len(message["content"]) for message in problem.messages)


def read_report(
    path: Path,
    split: str,
    prompt_key: str = "prompt",
    seen: Seen | None = None,
    lengths: PromptLengths | None = None,
    check: Callable[[Problem], None] | None = None,
    row_texts: Callable[[Problem], Mapping[str, str]] | None = None,
    remarks: Callable[[Problem], Iterable[Remark]] | None = None,
) -> FileReport:
    """Reads a parquet, JSON or JSON-lines file and looks at every row.

    Args:
        seen: problems of the split's files before this one; those of this one are added.
        lengths: measures prompts; None: they are not measured.
        check: raises ValueError for a problem that can't be used, of whose row that is a fault.
        row_texts: what prompts show of a row beside its question; ValueError where the row lacks it.
        remarks: what else is to be said of a problem.

    Raises:
        DataError: another format, broken content, a missing column, or no rows.
    """
    columns = Columns(chat=prompt_key, structured=True)
    required = (prompt_key, columns.answer.partition(".")[0], "data_source")
    report = FileReport(path, split, too_long=None if lengths is None else 0)
    seen = {} if seen is None else seen
    shortest: int | None = None
    for row in _rows(path, required, ("ability", "extra_info")):
        report.rows += 1
        try:
            problem = _problem(row, required, columns)
            report.repaired += problem.repaired
            report.with_system += any(one["role"] == "system" for one in problem.problem.messages)
            with _fault("repair the row, or the prompts' class"):
                texts = {} if row_texts is None else row_texts(problem.problem)
            size = chat_characters(problem.problem) + sum(map(len, texts.values()))
            if shortest is None or size < shortest:
                report.shortest_problem, shortest = problem.problem, size
            # One question about different texts is several problems: pairs of answers, each order.
            key = json.dumps([problem.key, *sorted(texts.items())]) if texts else problem.key
            if (first := seen.get(key)) is None:
                seen[key] = (problem.problem.ground_truth, row.place)
                report.problems.setdefault(problem.key, seen[key])
                if len(problem.question) > len(report.longest_question):
                    report.longest_question = problem.question
                report.longest_problem = max(report.longest_problem, problem.problem, key=chat_characters)
            elif same_reference(first[0], problem.problem.ground_truth):
                report.duplicates += 1
            else:
                report.contradictions.append((first[1], row.place))
            # Of every row, also of one with an earlier one's question: its `extra_info` may be another.
            if check is not None:
                with _fault("repair the row"):
                    check(problem.problem)
            for remark in () if remarks is None else remarks(problem.problem):
                report.remarks.setdefault(remark, Fault(remark.fix)).note(row.place)
            for name, text in texts.items():
                report.row_texts[name] = max(report.row_texts.get(name, ""), text, key=len)
            if lengths is not None and _exceeds(problem.problem, lengths, report):
                report.too_long = (report.too_long or 0) + 1
        except RowError as error:
            note_fault(report.faults, error, row.place.removeprefix(f"{path} row "))
    if report.rows == 0:
        raise DataError("the file has no rows", "Give one with problems.")
    return report


def _problem(row: Row, required: tuple[str, ...], columns: Columns) -> SourceProblem:
    if isinstance(row.data, RowError):
        raise row.data
    for name in required:
        if name not in row.data:
            raise RowError(f"there is no column {name}", f"add {name}")
    return read_problem(row.data, row.place, columns, None)[0]


@contextmanager
def _fault(fix: str) -> Iterator[None]:
    """A ValueError inside is a fault of the row."""
    try:
        yield
    except ValueError as error:
        raise RowError(str(error), fix) from error


def _exceeds(problem: Problem, lengths: PromptLengths, report: FileReport) -> bool:
    try:
        over = lengths.over(problem)
    except Exception as error:
        what = f"the prompts' class or the chat template fails on it ({type(error).__name__}: {error})"
        raise RowError(what, "repair the row, or the prompts' class") from error
    for role, tokens in over.items():
        report.longest_prompts[role] = max(report.longest_prompts.get(role, 0), tokens)
    return bool(over)


def as_list(value: Any) -> list[Any]:
    """One value as a list of one; a list as it is."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def splits_read(config: Any) -> tuple[str, ...]:
    """The splits whose files the run reads: an evaluation alone the held-out ones, a server none."""
    if config.marsrl.serve.enabled:
        return ()
    return ("val",) if config.trainer.val_only else ("train", "val")


@dataclass(frozen=True, slots=True)
class Question:
    """Question of a row of the data."""

    file: Path
    number: int
    """Number of the row in its file, from 0."""
    text: str
    """The last user message of the row's prompt, without spaces around it."""
    problem_id: str | None
    """Id in its id column; None without such a column, or without an id."""


def read_questions(path: Path, prompt_key: str, id_column: str | None) -> Iterator[Question]:
    """The question of every row, and its id in a column such as `uid` or `extra_info.index`; DataError as in
    `read_report`."""
    required = (prompt_key,) if id_column is None else (prompt_key, id_column.partition(".")[0])
    for number, row in enumerate(_rows(path, required)):
        if isinstance(row.data, RowError):
            raise DataError(f"{row.place}: {row.data.what}", row.data.fix)
        if missing := [name for name in required if name not in row.data]:
            raise DataError(_missing(missing, row.data), f"Look at {row.place}.")
        text = repaired(user_text(row.data.get(prompt_key)) or "")
        yield Question(path, number, text.strip(), _id(row.data, id_column))


def _id(row: dict[str, Any], id_column: str | None) -> str | None:
    value = None if id_column is None else value_at(row, id_column)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with holes
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return str(value).strip() or None


def _rows(path: Path, required: tuple[str, ...], more: tuple[str, ...] = ()) -> Iterator[Row]:
    """The rows with these columns, and with `more` where there are any; a parquet file has the required
    columns for all of them."""
    if path.suffix == ".parquet":
        present = parquet_columns(path)
        if missing := [name for name in required if name not in present]:
            raise DataError(_missing(missing, present), "Rename a column, or add it.")
    return read_rows([path], (*required, *more))


def _missing(names: list[str], present: Any) -> str:
    return f"column {', '.join(names)} is missing; found: {', '.join(sorted(present))}"
