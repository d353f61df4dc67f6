"""Places of a row's parts, and the reference answer that is read from it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import RowError
from marsrl_verl.rewards.extraction import boxed_answer, references

ANSWER_COLUMN = "reward_model.ground_truth"
"""Place of the reference answer in verl's rows."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of a row's parts. A dot leads into a column with fields."""

    question: str | None = None
    """A column of text; None: the column `chat` with chat messages, verl's form."""
    answer: str = ANSWER_COLUMN
    answer_after: str | None = None
    """The reference follows the last occurrence of this mark, as `####` in GSM8K; None: all of the text."""
    answer_boxed: bool = False
    """If true, the reference is the content of the text's last box, as in MATH's solutions."""
    answer_lists: bool = False
    """If true, a text that reads as a list of texts is one: `['New York', 'NYC']`."""
    answers_together: bool = False
    """If true, the texts of a list are parts of one answer, all of which are wanted, and no alternatives."""
    aliases: str | None = None
    """A column with further accepted answers."""
    data_source: str | None = None
    """Every row's data source; None: the column that `data_source_column` names, or the file's name where
    there is none."""
    data_source_column: str = "data_source"
    ability: str | None = None
    """Every row's kind of problem; None: the column `ability`, whose rows may name none."""
    extra: tuple[str, ...] = ()
    """Further columns that go into `extra_info`, such as a level."""
    chat: str = "prompt"
    drop_system: bool = False
    """Chats are taken without their system messages: the prompts' class words its own."""
    structured: bool = False
    """An answer may be a dictionary, for a reward that reads it."""

    @property
    def names(self) -> list[str]:
        """Top-level columns to read."""
        columns = [self.question or self.chat, self.answer, self.aliases or self.answer]
        columns += [self.data_source_column, "ability", "extra_info", *self.extra]
        return list(dict.fromkeys(name.partition(".")[0] for name in columns))


def reference_of(data: Mapping[str, Any], columns: Columns) -> str:
    """A row's reference answer as text; RowError: it has none."""
    fix = "fill it in, or name the column of the answers with --answer-column"
    value = _plain_answer(value_at(data, columns.answer))
    if value is None or value == []:
        raise RowError(f"there is no answer in {columns.answer}", fix)
    if isinstance(value, bool) or (isinstance(value, dict) and not columns.structured):
        raise RowError(f"{columns.answer} holds {kind_of(value)}, expected the answer", fix)
    if columns.answer_lists and isinstance(value, str):
        value = _listed(value) or value
    if columns.answers_together and isinstance(value, list):
        value = ", ".join(_without_dollars(str(one)) for one in value)
    if columns.aliases is not None:
        value = _with_aliases(value, value_at(data, columns.aliases))
    truth = _final_answer(ground_truth_of({"ground_truth": value}), columns)
    if not references(truth):
        raise RowError(f"the answer in {columns.answer} is empty", fix)
    return truth


def _without_dollars(text: str) -> str:
    """The text of a single formula: `$x$` is `x`, `$x$, $y$` stays."""
    text = text.strip()
    inner = text.strip("$")
    return inner.strip() if text.startswith("$") and text.endswith("$") and "$" not in inner else text


def _plain_answer(value: Any) -> Any:
    """An answer without what a column's type made of it: a whole number that holes turned into a float, nulls
    among accepted answers."""
    if isinstance(value, list):
        return [one for one in map(_plain_answer, value) if one is not None]
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value


def _final_answer(text: str, columns: Columns) -> str:
    """The part of the text that is the answer."""
    if columns.answer_boxed:
        boxed = boxed_answer(text)
        if boxed is None:
            raise RowError(f"{columns.answer} has no box", "correct the row")
        return boxed.readings[-1]
    if columns.answer_after is None:
        return text
    _, delimiter, answer = text.rpartition(columns.answer_after)
    if not delimiter:
        what = f"the mark {columns.answer_after!r} is not in the answer"
        raise RowError(what, "correct the row, or --answer-after")
    return answer.strip()


def _listed(text: str) -> list[str] | None:
    """The texts of a list that was written as text, as JSON or in Python's signs; None: it is none."""
    if not (text.lstrip().startswith("[") and text.rstrip().endswith("]")):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(text.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list) and found and all(isinstance(one, str) for one in found):
            return found
    return None


def _with_aliases(answer: Any, aliases: Any) -> list[Any]:
    """The answer and its aliases, each once."""
    if isinstance(aliases, str):
        aliases = _listed(aliases) or ([aliases] if aliases.strip() else [])
    answers = answer if isinstance(answer, list) else [answer]
    return list(dict.fromkeys([*map(str, answers), *map(str, aliases or ())]))


def ground_truth_of(reward_model: Mapping[str, Any]) -> str:
    """The reference answer of a dataset row as text, its LaTeX commands repaired (`data.repair`); several
    accepted answers, and a dictionary, become JSON."""
    truth = reward_model["ground_truth"]
    if isinstance(truth, Mapping):
        return json.dumps(truth, ensure_ascii=False, default=str)
    if isinstance(truth, (list, tuple, np.ndarray)):
        answers = [repaired(str(one)).strip() for one in truth]
        if not answers:
            raise ValueError("reward_model.ground_truth is an empty list")
        return answers[0] if len(answers) == 1 else json.dumps(answers, ensure_ascii=False)
    return repaired(str(truth)).strip()


def value_at(data: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None where a part of it is missing."""
    value: Any = data
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def kind_of(value: Any) -> str:
    """Returns the name of a value's type, for messages."""
    return "nothing" if value is None else type(value).__name__
