"""Pairs of answers as rows of training data: `python -m marsrl_verl.algos.rema.judge_data FILE … --test
test.parquet`

Reads these public layouts (parquet, JSON lines or a JSON array), each file by the columns that it has:

| layout | columns |
|---|---|
| RewardBench | `prompt`, `chosen`, `rejected`; `subset`, `id` where they are there |
| JudgeBench | `question`, `response_A`, `response_B`, `label` (`A>B` or `B>A`); `source`, `pair_id` |
| LLMBar | `input`, `output_1`, `output_2`, `label` (1 or 2) |
| solutions | `question`, and columns of `{"solution": …, "is_correct": …}`: the right against the wrong
ones |

Each pair becomes two rows, one for each order. The split is `strict` (no instruction is on both sides) or
`loose` (no row is, but the same pair in the other order may be)."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.core.inert_text import printable
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.data.rows import DataError, RowError, read_rows
from marsrl_verl.settings.choices import Choice

_COLUMNS = (
    *("prompt", "chosen", "rejected", "subset", "id"),
    *("question", "response_A", "response_B", "label", "source", "pair_id"),
    *("input", "output_1", "output_2"),
)
_LABELS = {"A>B": 0, "B>A": 1, "1": 0, "2": 1}
_SHOWN = 5


class SplitRule(Choice):
    """What training and test data may not have in common."""

    STRICT = "strict"
    """An instruction."""
    LOOSE = "loose"
    """A row: an instruction with two answers in one order."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An instruction with a better and a worse answer."""

    instruction: str
    better: str
    worse: str
    subset: str
    name: str
    better_first: bool = True
    """Whether the file shows the better one first."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A pair in one of its orders: a row."""

    pair: Pair
    swapped: bool
    """Whether the worse answer is A."""

    def row(self, index: int) -> dict[str, Any]:
        """In the format of verl's RL dataset."""
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
                "answer_a": first,
                "answer_b": second,
            },
        }


def read_pairs(paths: Sequence[Path]) -> list[Pair]:
    """The pairs of all files, in order; the same pair twice is one.

    Raises:
        DataError: a file or a row can't be used.
    """
    found: dict[tuple[str, str, str], Pair] = {}
    for path in paths:
        for row in read_rows([path], _COLUMNS):
            if isinstance(row.data, RowError):
                raise DataError(f"{row.place}: {row.data.what}", row.data.fix)
            for pair in _pairs(row.data, row.place, path.stem):
                found.setdefault((pair.instruction, pair.better, pair.worse), pair)
    if not found:
        raise DataError("The files hold no pair of answers.", "Name a file of one of the layouts.")
    return list(found.values())


def _pairs(data: Mapping[str, Any], place: str, stem: str) -> Iterator[Pair]:
    if {"prompt", "chosen", "rejected"} <= data.keys():
        texts, better = (data["prompt"], data["chosen"], data["rejected"]), 0
        subset, name = data.get("subset") or stem, data.get("id", place)
    elif {"question", "response_A", "response_B", "label"} <= data.keys():
        texts = data["question"], data["response_A"], data["response_B"]
        better, subset, name = (
            _label(data["label"], place),
            data.get("source") or stem,
            data.get("pair_id", place),
        )
    elif {"input", "output_1", "output_2", "label"} <= data.keys():
        texts = data["input"], data["output_1"], data["output_2"]
        better, subset, name = _label(data["label"], place), stem, place
    elif "question" in data and (solutions := _solutions(data)):
        yield from _solution_pairs(str(data["question"]), solutions, place, stem)
        return
    else:
        what = f"{place}: columns {', '.join(map(str, data))} are of no known layout of pairs."
        raise DataError(
            what, "Give RewardBench's, JudgeBench's or LLMBar's columns, or solutions with is_correct."
        )
    instruction, *answers = map(_text, texts)
    if not instruction.strip() or answers[0] == answers[1]:
        what = "the instruction is empty" if not instruction.strip() else "both answers are the same"
        raise DataError(f"{place}: {what}.", "Leave the row out.")
    yield Pair(instruction, answers[better], answers[1 - better], str(subset), str(name), better == 0)


def _text(value: Any) -> str:
    """An instruction or an answer; of a chat its last message."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value and isinstance(value[-1], Mapping):
        return str(value[-1].get("content", ""))
    raise DataError(f"Expected a text, found {type(value).__name__}.", "Give texts or chats.")


def _label(value: Any, place: str) -> int:
    label = str(value).replace(" ", "")
    if label not in _LABELS:
        raise DataError(f"{place}: found the label {value!r}, expected A>B, B>A, 1 or 2.", "Leave ties out.")
    return _LABELS[label]


def _solutions(data: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    return {
        name: (str(one["solution"]), bool(one["is_correct"]))
        for name, one in data.items()
        if isinstance(one, Mapping) and {"solution", "is_correct"} <= one.keys()
    }


def _solution_pairs(
    question: str, solutions: Mapping[str, tuple[str, bool]], place: str, stem: str
) -> Iterator[Pair]:
    right = [(name, text) for name, (text, correct) in solutions.items() if correct]
    wrong = [(name, text) for name, (text, correct) in solutions.items() if not correct]
    for (one, better), (other, worse) in itertools.product(right, wrong):
        if better != worse:
            yield Pair(question, better, worse, stem, f"{place}:{one}:{other}")


def both_orders(pairs: Sequence[Pair]) -> list[Judgement]:
    """Two rows of every pair."""
    return [Judgement(pair, swapped) for pair in pairs for swapped in (False, True)]


def rows_in_file_order(pairs: Sequence[Pair]) -> list[Judgement]:
    """One row of every pair, in the order of its file: for an evaluation that asks in both orders itself."""
    return [Judgement(pair, not pair.better_first) for pair in pairs]


def split(
    rows: Sequence[Judgement], test_rows: int, rule: SplitRule, seed: int
) -> tuple[list[Judgement], list[Judgement]]:
    """(training, test) data; about equally many test rows of every subset, at most `test_rows` in all.

    Args:
        rows: any.
        test_rows: of all subsets together.
        rule: what both sides may not have in common.
        seed: the same seed and rows give the same split.

    Raises:
        DataError: nothing would be left on one side.
    """
    blocks: dict[str, dict[str, list[Judgement]]] = {}
    for row in rows:
        instruction = _same_instruction(row.pair.instruction)
        key = (
            instruction
            if rule is SplitRule.STRICT
            else f"{instruction}\0{row.pair.better}\0{row.pair.worse}\0{row.swapped}"
        )
        # An instruction of several subsets is one block, of the first of them.
        home = next((each for each in blocks.values() if key in each), None)
        home = blocks.setdefault(row.pair.subset, {}) if home is None else home
        home.setdefault(key, []).append(row)
    queues = {}
    for subset in sorted(blocks):
        keys = sorted(blocks[subset])
        order = derive_generator(seed, "judge data", str(rule), subset).permutation(len(keys))
        queues[subset] = [blocks[subset][keys[at]] for at in order]
    test: list[Judgement] = []
    counts = dict.fromkeys(queues, 0)
    while True:
        # The next block is one that has room, of the subset with the fewest rows.
        remaining = test_rows - len(test)
        fitting: dict[str, int] = {}
        for subset, queue in queues.items():
            place = next((k for k, one in enumerate(queue) if len(one) <= remaining), None)
            if place is not None:
                fitting[subset] = place
        if not fitting:
            break
        chosen = min(fitting, key=lambda one: (counts[one], one))
        block = queues[chosen].pop(fitting[chosen])
        counts[chosen] += len(block)
        test += block
    training = [row for queue in queues.values() for block in queue for row in block]
    if not training or not test:
        side = "training" if not training else "test"
        raise DataError(f"{test_rows} test rows of {len(rows)} leave no {side} data.", "Change --test-rows.")
    return training, test


def _same_instruction(text: str) -> str:
    return " ".join(text.split()).casefold()


def shared_instructions(first: Sequence[Judgement], second: Sequence[Judgement]) -> int:
    """How many rows of `second` have an instruction of `first`."""
    known = {_same_instruction(row.pair.instruction) for row in first}
    return sum(_same_instruction(row.pair.instruction) in known for row in second)


def write(path: Path, rows: Sequence[Judgement]) -> None:
    """Write a parquet file; folders are made as needed."""
    import pandas as pd  # only writers need it

    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([row.row(index) for index, row in enumerate(rows)]).to_parquet(path, index=False)


def _described(name: str, rows: Sequence[Judgement]) -> str:
    subsets = Counter(row.pair.subset for row in rows)
    shown = ", ".join(f"{printable(subset)} {count}" for subset, count in subsets.most_common(_SHOWN))
    more = f" and {len(subsets) - _SHOWN} more" if len(subsets) > _SHOWN else ""
    return f"{name}: {len(rows)} rows of {len({row.pair for row in rows})} pairs; subsets: {shown}{more}"


def main(words: Sequence[str] | None = None) -> int:
    """Read, split, write; returns the exit status."""
    parser = argparse.ArgumentParser(description="Rows of pairs of answers from public files.")
    parser.add_argument("files", nargs="+", type=Path, help="RewardBench's, JudgeBench's or LLMBar's files")
    parser.add_argument(
        "--train", type=Path, help="where the training data goes; without it all is test data"
    )
    parser.add_argument("--test", type=Path, required=True, help="where the test data goes")
    parser.add_argument("--test-rows", type=int, default=970, help="with --train (default: 970)")
    parser.add_argument("--split", choices=[str(one) for one in SplitRule], default="strict")
    parser.add_argument("--seed", type=int, default=1, help="of the split (default: 1)")
    parser.add_argument(
        "--one-order",
        action="store_true",
        help="test data in the files' own order, for marsrl.evaluation.both_orders",
    )
    arguments = parser.parse_args(words)
    try:
        pairs = read_pairs(arguments.files)
        if arguments.train is None:
            test = rows_in_file_order(pairs) if arguments.one_order else both_orders(pairs)
        else:
            rule = SplitRule(arguments.split)
            training, test = split(both_orders(pairs), arguments.test_rows, rule, arguments.seed)
            overlap = shared_instructions(training, test)
            if arguments.one_order:
                test = rows_in_file_order(list(dict.fromkeys(row.pair for row in test)))
            write(arguments.train, training)
            print(_described(str(arguments.train), training))
            print(f"{rule} split: {overlap} test rows have an instruction of the training data")
        write(arguments.test, test)
        print(_described(str(arguments.test), test))
    except DataError as error:
        print(f"judge_data: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
