"""Reading data files in verl's format, as a check: rows without a question or an answer are found here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marsrl_verl.core.inert_text import holds_surrogates

MAX_NAMED_ROWS = 5


class UnreadableFileError(ValueError):
    """A data file that can't be read; the message says why."""


@dataclass(slots=True)
class FileReport:
    """What is in one data file."""

    path: Path
    split: str
    """`train` or `val`."""
    rows: int = 0
    without_answer: list[int] = field(default_factory=list)
    """Numbers of rows without `reward_model.ground_truth`, from 0."""
    without_question: list[int] = field(default_factory=list)
    """Numbers of rows whose prompt has no user message with text, from 0."""
    longest_question: str = ""
    """The question with the most characters."""


def read_report(path: Path, split: str, prompt_key: str, required: tuple[str, ...]) -> FileReport:
    """Read a parquet, JSON or JSON-lines file and look at every row.

    Raises:
        UnreadableFileError: another format, broken content, a missing column, or no rows.
    """
    report = FileReport(path, split)
    for number, row in enumerate(_rows(path, required)):
        report.rows += 1
        question = _question(row.get(prompt_key))
        if not question.strip():
            report.without_question.append(number)
        if not _has_answer(row.get("reward_model")):
            report.without_answer.append(number)
        if len(question) > len(report.longest_question):
            report.longest_question = question
    if report.rows == 0:
        raise UnreadableFileError("the file has no rows")
    return report


def as_list(value: Any) -> list[Any]:
    """One value as a list of one; a list as it is."""
    return list(value) if OmegaConf.is_list(value) or isinstance(value, list) else [value]


def read_questions(path: Path, prompt_key: str, id_column: str | None) -> Iterator[tuple[str, str | None]]:
    """The question of every row, and its id in a column such as `uid` or `extra_info.index`; None where no
    column is named or the row has no id.

    Raises:
        UnreadableFileError: as `read_report`.
    """
    names = id_column.split(".") if id_column is not None else []
    for row in _rows(path, (prompt_key, *names[:1])):
        yield _question(row.get(prompt_key)), _id(row, names)


def _id(row: dict[str, Any], names: list[str]) -> str | None:
    value: Any = row if names else None
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of whole numbers with holes
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return str(value).strip() or None


def _rows(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path, required)
    elif path.suffix in (".json", ".jsonl"):
        yield from _json_rows(path, required)
    else:
        raise UnreadableFileError(
            f"files of type {path.suffix or '(none)'} are not read; use .parquet, .jsonl, .json"
        )


def _parquet_rows(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_schema(path).names
        _require(required, columns)
        # By path, not from memory: pyarrow aborts at exit now and then after reading from a buffer.
        table = pq.read_table(path, columns=list(required))
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(f"it is no readable parquet file ({str(error).splitlines()[0]})") from error
    for batch in table.to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def _json_rows(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        whole = json.loads(text) if path.suffix == ".json" and text.lstrip().startswith("[") else None
        rows = whole if whole is not None else [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"it is no readable {path.suffix} file ({error})") from error
    escapes = "\\ud" in text.lower()
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise UnreadableFileError(f"a row is {type(row).__name__}, expected an object")
        if escapes and holds_surrogates(row):
            # What loads the data for the run refuses the whole file without naming the row.
            raise UnreadableFileError(
                f"row {number} (from 0) holds half of a surrogate pair, which is no character; "
                "replace it, for instance by U+FFFD"
            )
        _require(required, row)
        yield row


def _require(required: tuple[str, ...], present: Any) -> None:
    missing = [name for name in required if name not in present]
    if missing:
        raise UnreadableFileError(
            f"column {', '.join(missing)} is missing; found: {', '.join(sorted(present))}"
        )


def _question(prompt: Any) -> str:
    """The last user message of a chat prompt."""
    if not isinstance(prompt, list):
        return ""
    for message in reversed(prompt):
        if isinstance(message, dict) and message.get("role") == "user":
            content = message.get("content")
            return content if isinstance(content, str) else ""
    return ""


def _has_answer(reward_model: Any) -> bool:
    """A string or number, or a list of accepted answers with at least one."""
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    answers = truth if isinstance(truth, (list, tuple)) else [truth]
    return any(answer is not None and str(answer).strip() != "" for answer in answers)
