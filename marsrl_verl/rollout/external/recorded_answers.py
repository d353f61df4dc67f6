"""Answers of a frozen policy that were written to a file beforehand, and the data that they answer.

One JSON object per line, with the problem's question (or an id) and a list of answers:

    {"question": "What is 1+1?", "answers": ["<think>…</think>It is \\\\boxed{2}.", "\\\\boxed{3}"]}

Several lines may be about one problem; their answers are joined in the order of the lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from marsrl_verl.core.request import Message, RolloutRequest, Sampling
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.thinking import final_text
from marsrl_verl.data.files import Question, as_list, read_questions, splits_read
from marsrl_verl.data.rows import DataError
from marsrl_verl.endpoints.answer import ChatAnswer, failed
from marsrl_verl.rollout.external.config import AnswerFileConfig


class RecordedAnswersError(ValueError):
    """A file of answers that can't be used; the message names the line."""


class LineKey(str, Enum):
    """Key by which a line names its problem."""

    QUESTION = "question"
    """The text of the last user message of the problem's prompt, without spaces around it."""
    ID = "id"
    """An id, which a column of the data has too."""


@dataclass(slots=True)
class RecordedAnswers:
    """Places of the answers to each problem in a file. The answers themselves stay in the file: with their
    thinking parts they may be larger than the memory of all the processes that read it."""

    path: Path
    key: LineKey
    counts: dict[str, int] = field(default_factory=dict)
    """Number of answers by problem."""
    longest: str = ""
    """The longest answer without its thinking part, in characters."""
    _places: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(offset, length) in bytes of the lines about a problem."""

    @classmethod
    def scan(cls, path: Path, key: LineKey) -> RecordedAnswers:
        """Reads the whole file once and notes where everything is. Raises RecordedAnswersError: it can't be
        read, a line is not as it should be, or there is none."""
        found, offset = cls(path, key), 0
        with found._opened() as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found._add(number, offset, line)
                offset += len(line)
        if not found.counts:
            raise RecordedAnswersError("it has no line with answers")
        return found

    def _add(self, number: int, offset: int, line: bytes) -> None:
        name, answers = _parse(line, self.key, f"line {number}")
        self.counts[name] = self.counts.get(name, 0) + len(answers)
        self._places.setdefault(name, []).append((offset, len(line)))
        self.longest = max(self.longest, *(final_text(answer) for answer in answers), key=len)

    def answers(self, name: str) -> list[str]:
        """The answers to one problem, by its question or id; none for one that the file does not have. Raises
        RecordedAnswersError: the file is not the one that was scanned any more."""
        answers: list[str] = []
        if name not in self._places:
            return answers
        with self._opened() as file:
            for offset, length in self._places[name]:
                file.seek(offset)
                found, some = _parse(file.read(length), self.key, f"byte {offset}")
                if found != name:
                    raise RecordedAnswersError(f"byte {offset}: the file was changed after it was read")
                answers += some
        return answers

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        try:
            with self.path.open("rb") as file:
                yield file
        except OSError as error:
            raise RecordedAnswersError(f"it can't be read ({error.strerror or error})") from error


def _parse(line: bytes, key: LineKey, place: str) -> tuple[str, list[str]]:
    """The name and the answers of a line."""
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise RecordedAnswersError(f"{place} is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise RecordedAnswersError(f"{place} is {type(row).__name__}, expected an object")
    missing = [name for name in (key.value, "answers") if name not in row]
    if missing:
        listed = ", ".join(sorted(row)) or "nothing"
        raise RecordedAnswersError(f"{place} has no {' and no '.join(map(repr, missing))}; found: {listed}")
    return _name(row[key.value], key, place), _texts(row["answers"], place)


def _name(value: Any, key: LineKey, place: str) -> str:
    kinds = (str, int) if key is LineKey.ID else (str,)
    if not isinstance(value, kinds) or isinstance(value, bool) or not str(value).strip():
        expected = "a text or a whole number" if key is LineKey.ID else "a text"
        raise RecordedAnswersError(f"{place}: {key.value!r} is {value!r}, expected {expected}")
    return str(value).strip()


def _texts(value: Any, place: str) -> list[str]:
    if not isinstance(value, list) or not value:
        raise RecordedAnswersError(
            f"{place}: 'answers' is {_short(value)}, expected a list of texts, at least one"
        )
    for number, answer in enumerate(value):
        if not isinstance(answer, str):
            raise RecordedAnswersError(
                f"{place}: answer {number} (from 0) is {_short(answer)}, expected a text"
            )
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def draw(count: int, n: int, rng: np.random.Generator) -> list[int]:
    """`n` of the numbers 0 … `count` - 1, in random order, as evenly as possible: without replacement where
    there are enough, otherwise every number once before any comes again."""
    if count < 1:
        raise ValueError(f"there is nothing to draw from: count is {count}")
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += rng.permutation(count).tolist()
    return drawn[:n]


class FileSource:
    """Draws the answers to a problem from a file. Implements `AnswerSource`.

    What is drawn is a function of the seed and the group id alone. Of the id of an evaluation's group the tag
    in front of the problem's id does not count, so that an evaluation before and one after training judge
    the same solutions.

    Args:
        ids: the ids of every question, where lines are named by id.
    """

    def __init__(
        self, file: RecordedAnswers, seed: int, ids: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        if (ids is not None) != (file.key is LineKey.ID):
            raise ValueError(f"the lines of {file.path} are named by {file.key.value}, ids were given: {ids}")
        self.file, self.seed, self.ids = file, seed, ids

    def names(self, question: str) -> tuple[str, ...]:
        """Returns the names by which lines may refer to a problem."""
        question = question.strip()
        return (question,) if self.ids is None else self.ids.get(question, ())

    def count(self, question: str) -> int:
        """Number of answers to a problem."""
        return sum(self.file.counts.get(name, 0) for name in self.names(question))

    async def answer(
        self,
        request: RolloutRequest,
        k: int,
        messages: Sequence[Message],
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> ChatAnswer:
        """See `AnswerSource`. The problem is found by its question, whatever the messages."""
        names = self.names(request.problem.question)
        try:
            found = [text for name in names for text in self.file.answers(name)]
        except RecordedAnswersError as error:
            return failed(f"{self.file.path}: {error}")
        if not found:
            return failed(f"{self.file.path} has no answers to this problem")
        rng = derive_generator(self.seed, "external_solver", _without_tag(request))
        return ChatAnswer(found[draw(len(found), request.n, rng)[k]])


def _without_tag(request: RolloutRequest) -> str:
    """The group id from the problem's id on."""
    before, name, after = request.group_id.partition(request.problem.problem_id)
    return f"{name}{after}" if name else before


def questions_of(path: Path, prompt_key: str, id_column: str | None) -> list[Question]:
    """Questions of a data file. RecordedAnswersError: the file can't be read, or has no such column."""
    try:
        return list(read_questions(path, prompt_key, id_column))
    except DataError as error:
        raise RecordedAnswersError(f"{path}: {error.what}") from error


def ids_by_question(questions: Iterable[Question]) -> dict[str, tuple[str, ...]]:
    """The ids of every question. RecordedAnswersError: a row has no id, or one id names two questions."""
    ids: dict[str, tuple[str, ...]] = {}
    first: dict[str, Question] = {}
    for one in questions:
        if one.problem_id is None:
            raise RecordedAnswersError(f"{one.file}: row {one.number} (from 0) has no id")
        other = first.setdefault(one.problem_id, one)
        if other.text != one.text:
            raise RecordedAnswersError(
                f"id {one.problem_id!r} names two problems: row {other.number} of {other.file} and row "
                f"{one.number} of {one.file} (from 0)"
            )
        known = ids.get(one.text, ())
        if one.problem_id not in known:
            ids[one.text] = (*known, one.problem_id)
    return ids


def open_source(settings: AnswerFileConfig, seed: int, questions: Iterable[Question]) -> FileSource:
    """Reads the file of answers. Questions are those of the data, where lines have ids; else not looked at.
    Raises RecordedAnswersError: a file can't be used; the message says which line or row."""
    if settings.path is None:
        raise RecordedAnswersError("its path is null")
    key = LineKey.QUESTION if settings.id_column is None else LineKey.ID
    file = RecordedAnswers.scan(Path(settings.path).expanduser(), key)
    return FileSource(file, seed, None if key is LineKey.QUESTION else ids_by_question(questions))


def data_names(config: Any) -> list[str]:
    """The data files that a run reads, as they are named in a configuration."""
    return [
        str(name) for split in splits_read(config) for name in as_list(config.data[f"{split}_files"]) if name
    ]


def make_paths_absolute(config: Any) -> None:
    """Writes down where the files lie: the workers that read them may be in another folder."""
    files = [one.jsonl for one in config.marsrl.policies.values() if one.jsonl.path is not None]
    for jsonl in files:
        jsonl.path = _absolute(jsonl.path)
    for key in ("train_files", "val_files") if any(one.id_column is not None for one in files) else ():
        config.data[key] = [_absolute(name) for name in as_list(config.data[key]) if name]


def _absolute(name: Any) -> str:
    return str(Path(str(name)).expanduser().absolute())


def all_questions(config: Any, column: str | None) -> Iterator[Question]:
    """Questions of the data files that a run reads; `column` names problems. Raises RecordedAnswersError: as
    `questions_of`, when a file's first one is read."""
    for name in data_names(config):
        yield from questions_of(Path(name).expanduser(), str(config.data.prompt_key), column)
