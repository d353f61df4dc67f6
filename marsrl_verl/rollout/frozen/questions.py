"""The file of `marsrl.policies.<name>.jsonl` together with the data that it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from marsrl_verl.data.files import Question, as_list, read_questions
from marsrl_verl.data.rows import DataError
from marsrl_verl.rollout.frozen.answer_file import AnswerFile, AnswerFileError, FileSource, LineKey
from marsrl_verl.rollout.frozen.config import AnswerFileConfig


def questions_of(path: Path, prompt_key: str, id_column: str | None) -> list[Question]:
    """Questions of a data file. Raises AnswerFileError: the file can't be read, or has no such column."""
    try:
        return list(read_questions(path, prompt_key, id_column))
    except DataError as error:
        raise AnswerFileError(f"{path}: {error.what}") from error


def ids_by_question(questions: Iterable[Question]) -> dict[str, tuple[str, ...]]:
    """The ids of every question. Raises AnswerFileError: a row has no id, or one id names two questions."""
    ids: dict[str, tuple[str, ...]] = {}
    first: dict[str, Question] = {}
    for one in questions:
        if one.problem_id is None:
            raise AnswerFileError(f"{one.file}: row {one.number} (from 0) has no id")
        other = first.setdefault(one.problem_id, one)
        if other.text != one.text:
            raise AnswerFileError(
                f"id {one.problem_id!r} names two problems: row {other.number} of {other.file} and row "
                f"{one.number} of {one.file} (from 0)"
            )
        known = ids.get(one.text, ())
        if one.problem_id not in known:
            ids[one.text] = (*known, one.problem_id)
    return ids


def open_source(settings: AnswerFileConfig, seed: int, questions: Iterable[Question]) -> FileSource:
    """Read the file of answers. Questions are those of the data, where lines have ids; else not looked at.
    Raises AnswerFileError: a file can't be used; the message says which line or row."""
    if settings.path is None:
        raise AnswerFileError("its path is null")
    key = LineKey.QUESTION if settings.id_column is None else LineKey.ID
    file = AnswerFile.scan(Path(settings.path).expanduser(), key)
    return FileSource(file, seed, None if key is LineKey.QUESTION else ids_by_question(questions))


def data_names(config: Any) -> list[str]:
    """The data files of both splits as they are named in a configuration."""
    return [
        str(name) for split in ("train", "val") for name in as_list(config.data[f"{split}_files"]) if name
    ]


def make_paths_absolute(config: Any) -> None:
    """Write down where the files lie: the workers that read them may be in another folder."""
    files = [one.jsonl for one in config.marsrl.policies.values() if one.jsonl.path is not None]
    for jsonl in files:
        jsonl.path = _absolute(jsonl.path)
    for key in ("train_files", "val_files") if any(one.id_column is not None for one in files) else ():
        config.data[key] = [_absolute(name) for name in as_list(config.data[key]) if name]


def _absolute(name: Any) -> str:
    return str(Path(str(name)).expanduser().absolute())


def all_questions(config: Any, column: str | None) -> Iterator[Question]:
    """Questions of the data files of both splits; `column` names problems. Raises AnswerFileError: as
    `questions_of`, when a file's first one is asked for."""
    for name in data_names(config):
        yield from questions_of(Path(name).expanduser(), str(config.data.prompt_key), column)
