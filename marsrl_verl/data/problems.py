"""Rows become problems: question, reference answer, no duplicates, without a wrapped instruction."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marsrl_verl.core.request import Message, Problem
from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import Row, RowError
from marsrl_verl.rewards.extraction import boxed_answer, references
from marsrl_verl.rewards.normal_form import same_answer

_NAMED_ROWS = 1000
"""Places of bad rows that are kept per fault; the others are counted."""


ANSWER_COLUMN = "reward_model.ground_truth"
"""Where verl's rows have the reference answer."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row's parts stand. A dot leads into a column with fields."""

    question: str | None = None
    """A column of text; None: the column `chat` with chat messages, verl's form."""
    answer: str = ANSWER_COLUMN
    answer_after: str | None = None
    """The reference follows the last occurrence of this mark, as `####` in GSM8K; None: all of the text."""
    answer_boxed: bool = False
    """The reference is what the last box of the text holds, as in MATH's solutions."""
    answer_lists: bool = False
    """A text that reads as a list of texts is one: `['New York', 'NYC']`."""
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


@dataclass(frozen=True, slots=True)
class Instruction:
    """A fixed text around every problem."""

    before: str = ""
    after: str = ""

    def strip(self, question: str) -> str | None:
        """The problem alone; None where the instruction isn't around it. White space at the joints is
        taken off."""
        text, before, after = question.strip(), self.before.strip(), self.after.strip()
        if not (text.startswith(before) and text.endswith(after)) or len(text) < len(before) + len(after):
            return None
        return text[len(before) : len(text) - len(after)].strip()


DAPO_INSTRUCTION = Instruction(
    before="Solve the following math problem step by step. The last line of your response should be of the "
    "form Answer: $Answer (without quotes) where $Answer is the answer to the problem.",
    after='Remember to put your answer on its own line after "Answer:".',
)
"""What DAPO-Math-17k's released rows wrap around every problem."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A problem of the source, once."""

    key: str
    """Hash of the normalised chat (`problem_key`)."""
    problem: Problem
    """`problem_id` is `key`; `messages` are what the dataset's chat will be."""
    extra: str
    """The row's own `extra_info` with `Columns.extra` as JSON; empty where there is none."""
    place: str
    repaired: bool = False
    """Whether LaTeX commands of its texts were repaired (`data.repair`)."""

    @property
    def question(self) -> str:
        """The problem text."""
        return self.problem.question


@dataclass(slots=True)
class Fault:
    """What is wrong with some rows."""

    fix: str
    count: int = 0
    places: list[str] = field(default_factory=list)

    def note(self, place: str) -> None:
        """Count a row and remember where it is."""
        self.count += 1
        if len(self.places) < _NAMED_ROWS:
            self.places.append(place)


@dataclass(slots=True)
class Collected:
    """All problems of the source, in its order, and what was left out."""

    problems: dict[str, SourceProblem] = field(default_factory=dict)
    """By key."""
    rows: int = 0
    duplicates: int = 0
    """Rows with the question and the answer of an earlier one."""
    faults: dict[str, Fault] = field(default_factory=dict)
    """Bad rows by what is wrong with them."""
    stripped: int = 0
    """Rows whose instruction was taken off."""
    not_stripped: int = 0
    """Rows without the instruction that was to be taken off; they are taken as they are."""
    repaired: int = 0
    """Rows with LaTeX commands that were repaired (`data.repair`)."""

    @property
    def bad_rows(self) -> int:
        """Rows that are no usable problem."""
        return sum(fault.count for fault in self.faults.values())


def note_fault(faults: dict[str, Fault], error: RowError, place: str) -> None:
    """Count a bad row and remember where it is."""
    faults.setdefault(error.what, Fault(error.fix)).note(place)


def collect(
    rows: Iterable[Row], columns: Columns, instruction: Instruction | None, *, by_look: bool = False
) -> Collected:
    """Turn rows into problems and take every problem once.

    Two rows are the same problem when their chats agree after `normalised`. Where their references
    differ, neither can be trusted: the later rows count as bad, and the problem is left out.

    Args:
        by_look: two rows are the same problem, too, when their questions look alike (`look_alike`), whatever
            else their chats hold.
    """
    collected = Collected()
    firsts: dict[str, SourceProblem] = {}
    contradicted: set[str] = set()
    for row in rows:
        collected.rows += 1
        try:
            if isinstance(row.data, RowError):
                raise row.data
            problem, stripped = read_problem(row.data, row.place, columns, instruction)
            if instruction is not None:
                collected.stripped += stripped
                collected.not_stripped += not stripped
            collected.repaired += problem.repaired
            first = firsts.setdefault(look_alike(problem.question) if by_look else problem.key, problem)
            if first is problem:
                collected.problems[problem.key] = problem
                continue
            if not same_reference(first.problem.ground_truth, problem.problem.ground_truth):
                contradicted.add(first.key)
                raise RowError(
                    "the problem stands in an earlier row with another answer",
                    "correct one of the answers, or remove the problem",
                )
            collected.duplicates += 1
        except RowError as error:
            note_fault(collected.faults, error, row.place)
    for key in contradicted:
        first = collected.problems.pop(key)
        contradiction = RowError(
            "the problem stands in a later row with another answer",
            "correct one of the answers, or remove the problem",
        )
        note_fault(collected.faults, contradiction, first.place)
    return collected


def normalised(question: str) -> str:
    """The text that two rows with one problem share: composed characters, single spaces."""
    return " ".join(unicodedata.normalize("NFC", question).split())


def problem_key(question: str, others: Sequence[Message] = ()) -> str:
    """The hash by which a problem is known, 32 hexadecimal digits.

    Args:
        question: the last user message.
        others: the chat's other messages, a system message for example: they belong to the problem.
    """
    text = normalised(question)
    if others:
        text = json.dumps([text, *([one["role"], normalised(one["content"])] for one in others)])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_LOOKS_ONLY = re.compile(r"""[\s$\\{}().,;:!?'"`]+""")


def look_alike(question: str) -> str:
    """What remains of a question without spaces, punctuation, LaTeX's signs and case: equal for questions
    that differ in typesetting only, and for a few others. Signs of arithmetic stay."""
    return _LOOKS_ONLY.sub("", unicodedata.normalize("NFKC", question).casefold())


def read_problem(
    data: Mapping[str, Any], place: str, columns: Columns, instruction: Instruction | None
) -> tuple[SourceProblem, bool]:
    """The row's problem, and whether the instruction was taken off.

    Raises:
        RowError: the row is no problem with an answer.
    """
    written = _messages(data, columns)
    messages = repaired_messages(written)
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    question, bare = messages[last]["content"].strip(), None
    if instruction is not None and (bare := instruction.strip(question)) is not None:
        question = bare
    if not question:
        raise RowError("the question is empty", "give it a text")
    messages[last]["content"] = question
    key = problem_key(question, messages[:last] + messages[last + 1 :])
    extra = _extra(data, columns)
    problem = Problem(
        problem_id=key,
        question=question,
        ground_truth=_reference(data, columns),
        data_source=_data_source(data, place, columns),
        messages=tuple(messages),
        ability=columns.ability or ability_of(data.get("ability")),
        extra_info=dict(extra) if isinstance(extra, Mapping) else {},
    )
    source = SourceProblem(
        key=key,
        problem=problem,
        extra="" if extra is None else json.dumps(extra, ensure_ascii=False, default=str),
        place=place,
        repaired=repaired_messages(written) != written or _is_broken(_at(data, columns.answer)),
    )
    return source, bare is not None


def ability_of(value: Any) -> str:
    """What a row's column `ability` says; empty where it says nothing (null, or a column without a type)."""
    return value.strip() if isinstance(value, str) else ""


def _extra(data: Mapping[str, Any], columns: Columns) -> Any:
    extra = data.get("extra_info")
    more = {name: data[name] for name in columns.extra if data.get(name) is not None}
    if not more:
        return extra
    return {**extra, **more} if isinstance(extra, Mapping) else more


def _is_broken(answer: Any) -> bool:
    texts = answer if isinstance(answer, (list, tuple)) else [answer]
    return any(isinstance(one, str) and repaired(one) != one for one in texts)


def repaired_messages(messages: Sequence[Message]) -> list[Message]:
    """A chat with its LaTeX commands repaired (`data.repair`)."""
    return [{**message, "content": repaired(message["content"])} for message in messages]


def _messages(data: Mapping[str, Any], columns: Columns) -> list[Message]:
    if columns.question is not None:
        text = _at(data, columns.question)
        if not isinstance(text, str):
            raise RowError(
                f"column {columns.question} holds {_kind(text)}, expected text",
                "name the column of the questions with --question-column",
            )
        return [{"role": "user", "content": text}]
    prompt = data.get(columns.chat)
    if not isinstance(prompt, list):
        raise RowError(
            f"column {columns.chat} holds {_kind(prompt)}, expected chat messages",
            "for plain text name its column with --question-column",
        )
    messages: list[Message] = []
    for message in prompt:
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise RowError("a chat message has no role or no text", "give every message a role and a text")
        messages.append({"role": role, "content": content})
    if columns.drop_system:
        messages = [message for message in messages if message["role"] != "system"]
    if not any(message["role"] == "user" for message in messages):
        raise RowError("the chat has no user message", "put the question into a message of role user")
    return messages


def _reference(data: Mapping[str, Any], columns: Columns) -> str:
    fix = "fill it in, or name the column of the answers with --answer-column"
    value = _plain_answer(_at(data, columns.answer))
    if value is None or value == []:
        raise RowError(f"there is no answer in {columns.answer}", fix)
    if isinstance(value, bool) or (isinstance(value, dict) and not columns.structured):
        raise RowError(f"{columns.answer} holds {_kind(value)}, expected the answer", fix)
    if columns.answer_lists and isinstance(value, str):
        value = _listed(value) or value
    if columns.aliases is not None:
        value = _with_aliases(value, _at(data, columns.aliases))
    truth = _final_answer(ground_truth_of({"ground_truth": value}), columns)
    if not references(truth):
        raise RowError(f"the answer in {columns.answer} is empty", fix)
    return truth


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


def _data_source(data: Mapping[str, Any], place: str, columns: Columns) -> str:
    if columns.data_source is not None:
        return columns.data_source
    named = data.get(columns.data_source_column)
    # The place begins with the file's path.
    return str(named) if named else place.rpartition(" row ")[0].rpartition("/")[2].rpartition(".")[0]


def question_of(messages: list[Message]) -> str:
    """The problem text of a dataset row: its last user message."""
    for message in reversed(messages):
        if message["role"] == "user":
            return message["content"]
    raise ValueError(f"a dataset prompt needs a user message, found roles {[m['role'] for m in messages]}")


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


def _at(data: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; None where a part of it is missing."""
    value: Any = data
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def same_reference(first: str, second: str) -> bool:
    """Whether two references accept a common answer."""
    return first == second or any(
        same_answer(one, other) for one in references(first) for other in references(second)
    )
