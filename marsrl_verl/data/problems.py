"""Rows become problems: question, reference answer, no duplicates, without a wrapped instruction."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marsrl_verl.core.request import Message, Problem
from marsrl_verl.data.columns import Columns, kind_of, reference_of, value_at
from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import Row, RowError
from marsrl_verl.rewards.extraction import references
from marsrl_verl.rewards.normal_form import same_answer

_NAMED_ROWS = 1000
"""Places of bad rows that are kept per fault; the others are counted."""
_CONTRADICTION = "correct one of the answers, or remove the problem"


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
    """True if LaTeX commands of its texts were repaired (`data.repair`)."""

    @property
    def question(self) -> str:
        """The problem text."""
        return self.problem.question


@dataclass(slots=True)
class Fault:
    """A fault that some rows have."""

    fix: str
    count: int = 0
    places: list[str] = field(default_factory=list)

    def note(self, place: str) -> None:
        """Counts a row and remembers where it is."""
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
    """Counts a bad row and remembers where it is."""
    faults.setdefault(error.what, Fault(error.fix)).note(place)


def collect(
    rows: Iterable[Row], columns: Columns, instruction: Instruction | None, *, by_look: bool = False
) -> Collected:
    """The problems of rows, each once.

    Two rows are the same problem when their chats agree after `normalised`, or, `by_look`, when their
    questions look alike (`look_alike`), whatever else the chats hold. Where their references differ, neither
    can be trusted: the later rows count as bad, and the problem is left out.
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
                raise RowError("the problem stands in an earlier row with another answer", _CONTRADICTION)
            collected.duplicates += 1
        except RowError as error:
            note_fault(collected.faults, error, row.place)
    for key in contradicted:
        first = collected.problems.pop(key)
        contradiction = RowError("the problem stands in a later row with another answer", _CONTRADICTION)
        note_fault(collected.faults, contradiction, first.place)
    return collected


def normalised(question: str) -> str:
    """The text that two rows with one problem share: composed characters, single spaces."""
    return " ".join(unicodedata.normalize("NFC", question).split())


def problem_key(question: str, others: Sequence[Message] = ()) -> str:
    """The hash by which a problem is known, 32 hexadecimal digits: of the last user message, and of the
    chat's other messages, such as a system message, which belong to the problem."""
    text = normalised(question)
    if others:
        text = json.dumps([text, *([one["role"], normalised(one["content"])] for one in others)])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_LOOKS_ONLY = re.compile(r"""[\s$\\{}().,;:!?'"`]+""")


def look_alike(question: str) -> str:
    """Returns a question without spaces, punctuation, LaTeX's signs and case: equal for questions that differ
    in typesetting only, and for a few others. Signs of arithmetic stay."""
    return _LOOKS_ONLY.sub("", unicodedata.normalize("NFKC", question).casefold())


def read_problem(
    data: Mapping[str, Any], place: str, columns: Columns, instruction: Instruction | None
) -> tuple[SourceProblem, bool]:
    """The row's problem, and whether the instruction was taken off; RowError: it is no problem with an
    answer."""
    written = _messages(data, columns)
    messages = repaired_messages(written)
    broken = messages != written or _is_broken(value_at(data, columns.answer))
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
        ground_truth=reference_of(data, columns),
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
        repaired=broken,
    )
    return source, bare is not None


def ability_of(value: Any) -> str:
    """Returns a row's column `ability`; empty if it has no value (null, or a column without a type)."""
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
        text = value_at(data, columns.question)
        if not isinstance(text, str):
            raise RowError(
                f"column {columns.question} holds {kind_of(text)}, expected text",
                "name the column of the questions with --question-column",
            )
        return [{"role": "user", "content": text}]
    prompt = data.get(columns.chat)
    if not isinstance(prompt, list):
        raise RowError(
            f"column {columns.chat} holds {kind_of(prompt)}, expected chat messages",
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


def _data_source(data: Mapping[str, Any], place: str, columns: Columns) -> str:
    if columns.data_source is not None:
        return columns.data_source
    named = data.get(columns.data_source_column)
    # The place begins with the file's path.
    return str(named) if named else place.rpartition(" row ")[0].rpartition("/")[2].rpartition(".")[0]


def user_text(chat: Any) -> str | None:
    """The text of a chat's last user message; None where there is none."""
    messages = [one for one in chat if isinstance(one, dict)] if isinstance(chat, list) else []
    asked = [one.get("content") for one in messages if one.get("role") == "user"]
    return asked[-1] if asked and isinstance(asked[-1], str) else None


def question_of(messages: list[Message]) -> str:
    """The problem text of a dataset row: its last user message."""
    if (text := user_text(messages)) is not None:
        return text
    raise ValueError(f"a dataset prompt needs a user message, found roles {[m['role'] for m in messages]}")


def same_reference(first: str, second: str) -> bool:
    """True if two references accept a common answer."""
    return first == second or any(
        same_answer(one, other) for one in references(first) for other in references(second)
    )
