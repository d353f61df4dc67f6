"""Problems that stand in evaluation sets too: training on them makes their results a matter of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marsrl_verl.data.benchmarks import BENCHMARKS, read_benchmark
from marsrl_verl.data.problems import SourceProblem, look_alike, user_text
from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import DataError, RowError, read_rows

_TEXT_COLUMNS = ("question", "problem")
_CHAT_COLUMN = "prompt"
_NAMED_PLACES = 1000


@dataclass(slots=True)
class EvaluationSet:
    """The questions of a file or benchmark, as they look without typesetting (`look_alike`)."""

    path: Path
    questions: dict[str, str] = field(default_factory=dict)
    """Place of the first row with a question."""

    @classmethod
    def read(cls, path: Path, column: str | None = None) -> EvaluationSet:
        """The questions of a file in any of the forms that problems are read from, or of a benchmark;
        DataError: a row has none, or it can't be read.

        Args:
            path: of the file, or the name of one of `BENCHMARKS`, which is read from the hub.
            column: of the questions; None: `question` or `problem` with a text, else the chat in `prompt`.
        """
        found = cls(path)
        if str(path) in BENCHMARKS and not path.exists():
            try:
                problems = read_benchmark(str(path)).problems
            except DataError as error:
                raise DataError(error.what, "Name a copy of your own: --evaluation-set FILE.") from error
            for one in problems:
                found.questions.setdefault(look_alike(one.question), one.place)
            return found
        for row in read_rows([path], [column] if column else [*_TEXT_COLUMNS, _CHAT_COLUMN]):
            text = None if isinstance(row.data, RowError) else _question(row.data, column)
            if text is None:
                either = f"columns {', '.join(_TEXT_COLUMNS)}, or a chat in {_CHAT_COLUMN}"
                what = f"{row.place}: it has no question ({f'column {column}' if column else either})."
                raise DataError(what, "Name the column with --evaluation-column, or correct the row.")
            if looks := look_alike(repaired(text)):
                found.questions.setdefault(looks, row.place)
        return found


@dataclass(slots=True)
class Contamination:
    """Problems that stand in evaluation sets."""

    shared: dict[str, int] = field(default_factory=dict)
    """Number of problems in each evaluation set, by its path; a problem may stand in several."""
    keys: set[str] = field(default_factory=set)
    """Keys of the problems."""
    places: list[tuple[str, str]] = field(default_factory=list)
    """Places of the first such problems, in the source and in an evaluation set."""


def find_contamination(
    problems: Iterable[SourceProblem], evaluation_sets: Sequence[EvaluationSet]
) -> Contamination:
    """Compares all questions with those of evaluation sets. Typesetting, punctuation and case make no
    difference."""
    found = Contamination(shared={str(one.path): 0 for one in evaluation_sets})
    for problem in problems:
        looks = look_alike(problem.question)
        for one in evaluation_sets:
            if looks in one.questions:
                found.shared[str(one.path)] += 1
                found.keys.add(problem.key)
                if len(found.places) < _NAMED_PLACES:
                    found.places.append((problem.place, one.questions[looks]))
    return found


def _question(data: Mapping[str, Any], column: str | None) -> str | None:
    for name in (column,) if column else _TEXT_COLUMNS:
        if isinstance(text := data.get(name), str) and text.strip():
            return text
    text = user_text(data.get(column or _CHAT_COLUMN))
    return text if text and text.strip() else None
