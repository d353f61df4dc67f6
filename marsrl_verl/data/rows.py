"""Rows of parquet and JSON files, one after the other, each with the place it comes from.

Files are read in pieces: DAPO's released parquet has 1.8 million rows.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.core.sanitize import holds_surrogates

_ROWS_AT_ONCE = 1024
_FORMATS = ".parquet, .jsonl, .json"


class DataError(Exception):
    """A file, or all of them, can't be used: `what` was found, where, and expected; `fix` says what to do."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix


class RowError(ValueError):
    """One row is no problem with an answer: `what` is wrong with it, in the same words for the same fault."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file."""

    place: str
    """File and number, for messages."""
    data: dict[str, Any] | RowError
    """Its columns, or why there are none."""


def read_rows(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Row]:
    """The rows of parquet, JSON-lines or JSON files (an array of objects), in order, with the columns that
    are wanted as far as a file has them; DataError: one is not there, of another type, or unreadable as a
    whole."""
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file.", f"Name an existing file ({_FORMATS}).")
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, columns)
        elif path.suffix == ".jsonl":
            yield from _json_lines(path)
        elif path.suffix == ".json":
            yield from _json_array(path)
        else:
            what = f"{path}: files of type {path.suffix or '(none)'} are not read."
            raise DataError(what, f"Convert it to {_FORMATS}.")


def parquet_columns(path: Path) -> list[str]:
    """The names of a parquet file's columns; DataError: it is unreadable."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception, where: str = "") -> DataError:
    what = f"{path}: it is no readable parquet file{where} ({str(error).splitlines()[0]})."
    return DataError(what, "Get the file anew.")


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        # By path, not from memory: pyarrow aborts at exit now and then after reading from a buffer.
        with pq.ParquetFile(path) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            if not present:
                found = ", ".join(file.schema_arrow.names)
                what = f"{path}: none of the columns {', '.join(columns)} is there; found: {found}."
                raise DataError(what, "Name the columns with --question-column and --answer-column.")
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=present):
                for data in batch.to_pylist():
                    yield Row(f"{path} row {number}", data)
                    number += 1
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error, f", from row {number} on") from error


def _json_lines(path: Path) -> Iterator[Row]:
    try:
        # Bytes: a line in another encoding is a bad row, and costs no other one.
        with path.open("rb") as file:
            number = 0
            for line_number, line in enumerate(file, start=1):
                line = line.removeprefix(codecs.BOM_UTF8) if line_number == 1 else line
                if line.strip():
                    yield Row(f"{path} row {number} (line {line_number})", _parsed(line))
                    number += 1
    except OSError as error:
        raise DataError(f"{path}: it can't be read ({error}).", "Name a file that can be.") from error


def _parsed(line: bytes) -> dict[str, Any] | RowError:
    try:
        data = json.loads(line.decode())
    except UnicodeDecodeError:
        return RowError("the line is not UTF-8 text", "save the file as UTF-8")
    except ValueError:
        return RowError("the line is no JSON", "repair or remove the line")
    return _checked(data)


def _checked(data: Any) -> dict[str, Any] | RowError:
    if not isinstance(data, dict):
        return RowError("the row is no object with columns", 'write rows as {"question": …, "answer": …}')
    if holds_surrogates(data):
        return RowError("the row holds half of a surrogate pair, which is no character", "replace it")
    return data


def _json_array(path: Path) -> Iterator[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{") and len(text.strip().splitlines()) > 1:
            # Lines of JSON under the other name, as Hugging Face's reader takes them.
            yield from _json_lines(path)
            return
        data = json.loads(text)
    except (OSError, ValueError) as error:
        what = f"{path}: it is no readable JSON file ({error})."
        raise DataError(what, "One object per line belongs in a .jsonl file.") from error
    if not isinstance(data, list):
        what = f"{path}: it holds {type(data).__name__}, expected an array of objects."
        raise DataError(what, "Name a file with an array of rows.")
    for number, item in enumerate(data):
        yield Row(f"{path} row {number}", _checked(item))
