"""Pairs of answers, one of which is the better: public layouts, and rows of verl's form.

| layout | columns |
|---|---|
| RewardBench | `prompt`, `chosen`, `rejected`; `subset`, `id` where they are there |
| JudgeBench | `question`, `response_A`, `response_B`, `label` (`A>B` or `B>A`); `source`, `pair_id` |
| LLMBar | `input`, `output_1`, `output_2`, `label` (1 or 2) |
| solutions | `question`, and columns of `{"solution": …, "is_correct": …}`: the right against the wrong |
| verl | `prompt`, `reward_model.ground_truth` (`A` or `B`), `extra_info.answer_a`, `extra_info.answer_b` |
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marsrl_verl.data.columns import ANSWER_COLUMN, Columns, value_at
from marsrl_verl.data.problems import Collected, note_fault, read_problem
from marsrl_verl.data.rows import Row, RowError

ANSWER_A, ANSWER_B = "answer_a", "answer_b"
"""Names of the two answers in `extra_info`."""
PAIR_FIELDS = (ANSWER_A, ANSWER_B, "subset")
"""Texts of `extra_info` beside verl's columns."""
COLUMNS = (
    *("prompt", "chosen", "rejected", "subset", "id"),
    *("question", "response_A", "response_B", "label", "source", "pair_id"),
    *("input", "output_1", "output_2", "reward_model", "extra_info"),
)
"""Columns of the layouts with fixed names."""
_LABELS = {"A>B": 0, "B>A": 1, "1": 0, "2": 1, "A": 0, "B": 1}


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction with a better and a worse answer."""

    instruction: str
    better: str
    worse: str
    subset: str
    name: str
    better_first: bool = True
    """True if the file shows the better one first; in layouts whose columns say which one is better it is
    drawn by the texts, true for one half of the pairs."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A pair in one of its orders: a row."""

    pair: Pair
    swapped: bool
    """True if the worse answer is A."""

    def row(self, index: int) -> dict[str, Any]:
        """Returns the row in the format of verl's RL dataset."""
        pair = self.pair
        first, second = (pair.worse, pair.better) if self.swapped else (pair.better, pair.worse)
        return {
            "data_source": f"judge/{pair.subset}",
            "prompt": [{"role": "user", "content": pair.instruction}],
            "ability": "judge",
            "reward_model": {"style": "rule", "ground_truth": "B" if self.swapped else "A"},
            "extra_info": {
                "index": index,
                "pair": pair.name,
                "subset": pair.subset,
                ANSWER_A: first,
                ANSWER_B: second,
            },
        }


_LAYOUT_FIX = "give RewardBench's, JudgeBench's or LLMBar's columns, or solutions with is_correct"


def pairs_of(data: Mapping[str, Any], place: str, stem: str) -> Iterator[Pair]:
    """A row's pairs; RowError: it has none, or is of no known layout.

    Args:
        data: its columns.
        place: for the name of a pair that has none.
        stem: the subset of pairs that name none.
    """
    data, drawn = {name: value for name, value in data.items() if value is not None}, None
    if {"prompt", "chosen", "rejected"} <= data.keys():
        texts, better = (data["prompt"], data["chosen"], data["rejected"]), 0
        subset, name = data.get("subset", stem), data.get("id", place)
        drawn = _digest(*map(str, texts))[0] % 2 == 0
    elif {"question", "response_A", "response_B", "label"} <= data.keys():
        texts = data["question"], data["response_A"], data["response_B"]
        better, subset, name = _label(data["label"]), data.get("source", stem), data.get("pair_id", place)
    elif {"input", "output_1", "output_2", "label"} <= data.keys():
        texts = data["input"], data["output_1"], data["output_2"]
        better, subset, name = _label(data["label"]), stem, place
    elif isinstance(extra := data.get("extra_info"), Mapping) and {ANSWER_A, ANSWER_B} <= extra.keys():
        texts, better = (
            (data.get("prompt"), extra[ANSWER_A], extra[ANSWER_B]),
            _label(value_at(data, ANSWER_COLUMN)),
        )
        subset, name = extra.get("subset") or stem, extra.get("pair", place)
    elif "question" in data and (solutions := _solutions(data)):
        yield from _solution_pairs(_instruction(data["question"]), solutions, place, stem)
        return
    else:
        raise RowError(f"columns {', '.join(map(str, data))} are of no known layout of pairs", _LAYOUT_FIX)
    instruction, answers = _instruction(texts[0]), [_text(one) for one in texts[1:]]
    if answers[0].strip() == answers[1].strip():
        raise RowError("both answers are the same", "leave the row out")
    first = better == 0 if drawn is None else drawn
    yield Pair(instruction, answers[better], answers[1 - better], str(subset), str(name), first)


def _instruction(value: Any) -> str:
    """A text, or the only message of a chat beside the system's."""
    if not isinstance(value, str) and isinstance(value, Sequence):
        asked = [one for one in value if not (isinstance(one, Mapping) and one.get("role") == "system")]
        if len(asked) > 1:
            raise RowError("the instruction is a chat of several messages", "give single questions")
        value = asked
    text = _text(value)
    if not text.strip():
        raise RowError("the instruction is empty", "leave the row out")
    return text


def _text(value: Any) -> str:
    """An instruction or an answer; of a chat its last message."""
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and value
        and isinstance(value[-1], Mapping)
    ):
        value = value[-1].get("content")
    if not isinstance(value, str):
        raise RowError(f"expected a text or a chat, found {type(value).__name__}", "give texts or chats")
    return value


def _label(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a column of integers with a gap comes as floats
    label = str(value).replace(" ", "")
    if label not in _LABELS:
        raise RowError(f"found the label {value!r}, expected A>B, B>A, A, B, 1 or 2", "leave ties out")
    return _LABELS[label]


def _solutions(data: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    found = {}
    for name, one in data.items():
        if isinstance(one, Mapping) and {"solution", "is_correct"} <= one.keys():
            correct = one["is_correct"]
            if correct not in (True, False):
                raise RowError(f"found is_correct = {correct!r}, expected true or false", "correct it")
            found[name] = _text(one["solution"]), bool(correct)
    return found


def _solution_pairs(
    question: str, solutions: Mapping[str, tuple[str, bool]], place: str, stem: str
) -> Iterator[Pair]:
    right = [(name, text) for name, (text, correct) in solutions.items() if correct]
    wrong = [(name, text) for name, (text, correct) in solutions.items() if not correct]
    for (one, better), (other, worse) in itertools.product(right, wrong):
        if better.strip() == worse.strip():
            raise RowError("a solution is called right and wrong", "leave the row out")
        yield Pair(question, better, worse, stem, f"{place}:{one}:{other}")


def collect_pairs(rows: Iterable[Row], data_source: str) -> Collected:
    """Each pair once in each of the orders that rows have, as problems: the question, `A` or `B`, and the
    answers in `extra_info`. A question may have several pairs."""
    found, columns = Collected(), Columns(data_source=data_source)
    for row in rows:
        found.rows += 1
        try:
            if isinstance(row.data, RowError):
                raise row.data
            for pair in pairs_of(row.data, row.place, data_source):
                data = Judgement(pair, not pair.better_first).row(found.rows)
                one, _ = read_problem(data, row.place, columns, None)
                texts = (one.key, data["extra_info"][ANSWER_A], data["extra_info"][ANSWER_B])
                key = _digest(*texts).hex()[:32]
                first = found.problems.setdefault(
                    key, replace(one, key=key, problem=replace(one.problem, problem_id=key))
                )
                if first.problem.ground_truth != one.problem.ground_truth:
                    raise RowError("an earlier row prefers the other answer", "correct one of the rows")
                found.duplicates += first.place != one.place
        except RowError as error:
            note_fault(found.faults, error, row.place)
    return found


def _digest(*texts: str) -> bytes:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()
