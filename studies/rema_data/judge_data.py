"""Pairs of answers as rows of training data: `python -m studies.rema_data.judge_data FILE … --test
test.parquet`

Reads the layouts of `marsrl_verl.data.pairs` (parquet, JSON lines or a JSON array), each file by the columns
that it has.

Rows that are no pair, and rows of one pair that prefer different answers, stop the command; the message has
their number and places. `--bad-rows skip` leaves them out and says so.

Each pair becomes two rows, one for each order. The split is `strict` (no instruction is on both sides) or
`loose` (no row is, but the same pair in the other order may be)."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marsrl_verl.core.sanitize import printable
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.data.pairs import Judgement, Pair, pairs_of
from marsrl_verl.data.rows import DataError, RowError, parquet_columns, read_rows
from marsrl_verl.settings.choices import Choice

_SHOWN = 5


class SplitRule(Choice):
    """What training and test data may not have in common."""

    STRICT = "strict"
    """An instruction."""
    LOOSE = "loose"
    """A row: an instruction with two answers in one order."""


@dataclass(slots=True)
class PairCounts:
    """What was found in the rows of files, beside the pairs."""

    rows: int = 0
    copies: int = 0
    """Pairs that were there before."""
    without_pair: int = 0
    """Rows of solutions that are all right or all wrong."""
    bad: dict[str, list[str]] = field(default_factory=dict)
    """By what is wrong, the places of all such rows."""

    @property
    def bad_rows(self) -> int:
        """Rows that can't be used."""
        return sum(map(len, self.bad.values()))

    def lines(self) -> list[str]:
        """Each fault, with how many rows have it and where the first of them stand."""
        return [
            f"{what}: {len(places)}, at {', '.join(places[:_SHOWN])}"
            + (f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else "")
            for what, places in self.bad.items()
        ]


def read_pairs(paths: Sequence[Path], *, skip_bad: bool = False) -> tuple[list[Pair], PairCounts]:
    """The pairs of all files, in order, and what else was found; the same pair twice is one.

    Args:
        paths: parquet, JSON-lines or JSON files.
        skip_bad: leave bad rows out. Of two rows that say the opposite of a pair both are bad.

    Raises:
        DataError: a file can't be used, or there are bad rows that are not to be skipped; the message has
            their number and where the first of each kind stand.
    """
    found: dict[tuple[str, str, str], tuple[Pair, str]] = {}
    opposed: set[tuple[str, str, str]] = set()
    counts = PairCounts()
    for path in paths:
        # All columns: solutions have their authors' names for theirs.
        columns = parquet_columns(path) if path.suffix == ".parquet" and path.is_file() else ()
        for row in read_rows([path], columns):
            counts.rows += 1
            try:
                if isinstance(row.data, RowError):
                    raise row.data
                pairs = list(pairs_of(row.data, row.place, path.stem))
            except RowError as error:
                counts.bad.setdefault(error.what, []).append(row.place)
                continue
            counts.without_pair += not pairs
            for pair in pairs:
                key = (pair.instruction, pair.better, pair.worse)
                other = (pair.instruction, pair.worse, pair.better)
                counts.copies += key in found
                if other in found:
                    opposed |= {key, other}
                found.setdefault(key, (pair, row.place))
    if opposed:
        places = [place for key, (_, place) in found.items() if key in opposed]
        counts.bad["another row prefers the other answer"] = list(dict.fromkeys(places))
    if counts.bad and not skip_bad:
        what = "\n  ".join([f"{counts.bad_rows} of {counts.rows} rows are no usable pair.", *counts.lines()])
        raise DataError(what, "Correct these rows, or leave them out with --bad-rows skip.")
    kept = [pair for key, (pair, _) in found.items() if key not in opposed]
    if not kept:
        what = "\n  ".join(["The files hold no pair of answers.", *counts.lines()])
        raise DataError(what, "Name a file of one of the layouts.")
    return kept, counts


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
    """Writes a parquet file; folders are made as needed."""
    import pandas as pd  # only writers need it

    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([row.row(index) for index, row in enumerate(rows)]).to_parquet(path, index=False)


def _described(name: str, rows: Sequence[Judgement]) -> str:
    subsets = Counter(row.pair.subset for row in rows)
    shown = ", ".join(f"{printable(subset)} {count}" for subset, count in subsets.most_common(_SHOWN))
    more = f" and {len(subsets) - _SHOWN} more" if len(subsets) > _SHOWN else ""
    return f"{name}: {len(rows)} rows of {len({row.pair for row in rows})} pairs; subsets: {shown}{more}"


def main(words: Sequence[str] | None = None) -> int:
    """Reads, splits, writes; returns the exit status."""
    parser = argparse.ArgumentParser(description="Rows of pairs of answers from public files.")
    parser.add_argument("files", nargs="+", type=Path, help="RewardBench's, JudgeBench's or LLMBar's files")
    parser.add_argument(
        "--train", type=Path, help="where the training data goes; without it all is test data"
    )
    parser.add_argument("--test", type=Path, required=True, help="where the test data goes")
    parser.add_argument("--test-rows", type=int, help="with --train (970)")
    parser.add_argument("--split", choices=[str(one) for one in SplitRule], help="with --train (strict)")
    parser.add_argument("--seed", type=int, help="of the split, with --train (1)")
    parser.add_argument("--bad-rows", choices=["refuse", "skip"], default="refuse", help="(%(default)s)")
    parser.add_argument(
        "--one-order",
        action="store_true",
        help="test data in the files' own order, for marsrl.evaluation.both_orders",
    )
    arguments = parser.parse_args(words)
    of_split = {"--test-rows": 970, "--split": "strict", "--seed": 1}
    for option, default in of_split.items():
        name = option.strip("-").replace("-", "_")
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif arguments.train is None:
            parser.error(f"{option} is of the split, and without --train there is none")
    used = [path.resolve() for path in (*arguments.files, arguments.test)]
    if arguments.test.resolve() in used[:-1] or (arguments.train and arguments.train.resolve() in used):
        parser.error("--train, --test and the files that are read must all be different files")
    try:
        pairs, counts = read_pairs(arguments.files, skip_bad=arguments.bad_rows == "skip")
        print(
            f"{counts.rows} rows: {len(pairs)} pairs, {counts.copies} copies, {counts.without_pair} rows "
            f"without a pair, {counts.bad_rows} bad rows"
        )
        for line in counts.lines():
            print(f"  skipped: {printable(line)}")
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
        print(f"judge_data: {printable(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
