"""The file of `marsrl.external_solver.jsonl` together with the data that it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from marsrl_verl.config.data_files import as_list, read_questions
from marsrl_verl.data.rows import DataError
from marsrl_verl.rollout.external.answer_file import AnswerFile, AnswerFileError, FileSource, LineKey
from marsrl_verl.rollout.external.config import AnswerFileConfig, EndpointConfig


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the data, as far as a file of answers needs it."""

    file: Path
    number: int
    """In its file, from 0."""
    question: str
    problem_id: str | None
    """What its id column says; None without such a column, or without an id."""


def data_rows(path: Path, prompt_key: str, id_column: str | None) -> list[Row]:
    """The rows of a data file.

    Raises:
        AnswerFileError: the file can't be read, or has no such column.
    """
    try:
        found = list(read_questions(path, prompt_key, id_column))
    except DataError as error:
        raise AnswerFileError(f"{path}: {error.what}") from error
    return [Row(path, number, question.strip(), name) for number, (question, name) in enumerate(found)]


def ids_by_question(rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """The ids of every question.

    Raises:
        AnswerFileError: a row has no id, or one id names two questions.
    """
    ids: dict[str, tuple[str, ...]] = {}
    first: dict[str, Row] = {}
    for row in rows:
        if row.problem_id is None:
            raise AnswerFileError(f"{row.file}: row {row.number} (from 0) has no id")
        other = first.setdefault(row.problem_id, row)
        if other.question != row.question:
            raise AnswerFileError(
                f"id {row.problem_id!r} names two problems: row {other.number} of {other.file} and row "
                f"{row.number} of {row.file} (from 0)"
            )
        known = ids.get(row.question, ())
        if row.problem_id not in known:
            ids[row.question] = (*known, row.problem_id)
    return ids


def open_source(settings: AnswerFileConfig, seed: int, rows: Iterable[Row]) -> FileSource:
    """Read the file of answers.

    Args:
        settings: `marsrl.external_solver.jsonl`.
        seed: the run's.
        rows: of the data, which tell the questions where lines have ids; else not looked at.

    Raises:
        AnswerFileError: a file can't be used; the message says which line or row.
    """
    if settings.path is None:
        raise AnswerFileError("marsrl.external_solver.jsonl.path is null")
    key = LineKey.QUESTION if settings.id_column is None else LineKey.ID
    file = AnswerFile.scan(Path(settings.path).expanduser(), key)
    if settings.id_column is None:
        return FileSource(file, seed)
    return FileSource(file, seed, ids_by_question(rows))


def data_names(config: DictConfig) -> list[str]:
    """The data files of both splits as they are named."""
    return [name for split in ("train", "val") for name in _names(config.data[f"{split}_files"])]


def _names(value: Any) -> list[str]:
    return [str(name) for name in as_list(value) if name]


def make_paths_absolute(config: DictConfig) -> None:
    """Write down where the files lie: the workers that read them may be in another folder."""
    jsonl = config.marsrl.external_solver.jsonl
    if jsonl.path is None:
        return
    jsonl.path = str(Path(jsonl.path).expanduser().absolute())
    if jsonl.id_column is None:
        return
    for split in ("train", "val"):
        key = f"{split}_files"
        names = _names(config.data[key])
        config.data[key] = [str(Path(name).expanduser().absolute()) for name in names]


def all_rows(config: DictConfig) -> Iterator[Row]:
    """The rows of the data files of both splits.

    Raises:
        AnswerFileError: as `data_rows`, when the row is asked for.
    """
    column = config.marsrl.external_solver.jsonl.id_column
    for name in data_names(config):
        yield from data_rows(Path(name).expanduser(), str(config.data.prompt_key), column)


def workers_part(config: DictConfig, settings: EndpointConfig) -> int:
    """The requests to an endpoint that one agent-loop worker may have under way."""
    return max(1, settings.max_concurrent_requests // int(config.actor_rollout_ref.rollout.agent.num_workers))
