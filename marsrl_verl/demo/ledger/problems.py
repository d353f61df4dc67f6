"""Problems: a ledger of 24 labelled lines.

Most lines hold a number that the response copies. One, before the middle, is a sum: the response computes it
in the next line and names it `X`. A later one adds something to `X`, and the line after it is `Y`, the
answer. Of the lines behind `X` most ask whether a number is below or above a result, so that they have to
look back at the line where it was computed, and nowhere else is it written.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from marsrl_verl.demo.problems import LARGEST_TOTAL, QUESTION_PREFIX, Split, hashed_split

LINES = 24
LABELS = ascii_lowercase[:LINES]
FIRST, SECOND = "X", "Y"
_FIRST_LINES, _SECOND_LINES = range(9, 12), range(14, 18)
"""Where the two results are computed."""
_COMPARED = 0.8
"""Share of the lines after the first result that compare one."""
SMALLEST = 10
"""Of results: they are tokens of their own, as copied numbers are."""
DATA_SOURCE = "ledger"
COPIED, COMPARED = "copied", "compared"
RESULTS = ("first result", "second result")
"""Kinds of lines."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One problem."""

    entries: tuple[str, ...]
    """What the problem has in each line behind its label: a number, a sum, a name, or a number and a name."""
    base: int
    terms: tuple[int, int]
    """What is added to `base` for the first result, and to that for the second."""

    @property
    def computed(self) -> tuple[int, int]:
        """The lines of the two results."""
        return self.entries.index(FIRST), self.entries.index(SECOND)

    @property
    def question(self) -> str:
        """What the Solver is asked."""
        return QUESTION_PREFIX + " ".join(map("".join, zip(LABELS, self.entries, strict=True)))

    @property
    def results(self) -> tuple[int, int]:
        """The right values of both names."""
        return self.base + self.terms[0], self.base + sum(self.terms)

    @property
    def answer(self) -> int:
        """The second result."""
        return self.results[1]

    def kinds(self) -> list[str]:
        """What each line is: `copied`, `compared` or one of `RESULTS`."""
        known = dict(zip((FIRST, SECOND), RESULTS, strict=True))
        return [known.get(one) or (COMPARED if one[-1] in known else COPIED) for one in self.entries]

    def response(self, results: tuple[int, int] | None = None) -> str:
        """The lines with these results, and the answer that follows from them; None: the right ones."""
        values = dict(zip((FIRST, SECOND), self.results if results is None else results, strict=True))
        written = []
        for entry in self.entries:
            number, name = entry[:-1], entry[-1]
            if entry in values:
                entry += str(values[entry])
            elif name in values:
                entry += _relation(int(number), values[name])
            elif entry.startswith(FIRST):
                entry = entry.replace(FIRST, str(values[FIRST]))
            written.append(entry)
        lines = map("".join, zip(LABELS, written, strict=True))
        return "\n".join([*lines, f"\\boxed{{{values[SECOND]}}}"])

    def is_whole(self, response: str) -> bool:
        """Whether it has a line for each entry, and both results where they are computed."""
        lines = response.splitlines()
        return len(lines) == LINES + 1 and None not in self._written(lines)

    def _written(self, lines: Sequence[str]) -> tuple[int | None, int | None]:
        """The results as they stand in their lines."""
        found = [
            lines[line].partition(name)[2] if line < len(lines) else ""
            for line, name in zip(self.computed, (FIRST, SECOND), strict=True)
        ]
        first, second = (int(one) if one.isascii() and one.isdigit() else None for one in found)
        return first, second

    def follows(self, response: str) -> list[tuple[str, bool]]:
        """The kind of each line, and whether it is right, given the results that were written before it."""
        lines = response.splitlines()
        first, second = self._written(lines)
        first = self.results[0] if first is None else first
        follow = first + self.terms[1]
        wanted = self.response((first, follow if second is None else second)).splitlines()
        right = [line < len(lines) and lines[line] == wanted[line] for line in range(LINES)]
        at_first, at_second = self.computed
        right[at_first] = right[at_first] and first == self.results[0]
        right[at_second] = right[at_second] and second == follow
        return list(zip(self.kinds(), right, strict=True))

    @property
    def split(self) -> Split:
        """The part of the world that it belongs to; a stable function of what is computed in it."""
        return hashed_split(",".join(map(str, (self.base, *self.terms))))


def _relation(number: int, result: int) -> str:
    return "=" if number == result else "<" if number < result else ">"


def draw_ledger(rng: random.Random) -> Ledger:
    """One random problem, of any split."""
    while True:
        base = rng.randint(SMALLEST, LARGEST_TOTAL)
        terms = (_term(rng), _term(rng))
        results = base + terms[0], base + sum(terms)
        if all(SMALLEST <= one <= LARGEST_TOTAL for one in results):
            break
    values = dict(zip((FIRST, SECOND), results, strict=True))
    entries = [str(one) for one in rng.sample(range(LARGEST_TOTAL + 1, 100), LINES)]
    first, second = rng.choice(_FIRST_LINES), rng.choice(_SECOND_LINES)
    for line in range(first + 1, LINES):
        if rng.random() < _COMPARED:
            name = rng.choice((FIRST, SECOND)) if line > second else FIRST
            others = [one for one in range(SMALLEST, LARGEST_TOTAL + 1) if one != values[name]]
            entries[line] = f"{rng.choice(others)}{name}"
    entries[first - 1 : first + 1] = [f"{base}{terms[0]:+d}", FIRST]
    entries[second - 1 : second + 1] = [f"{FIRST}{terms[1]:+d}", SECOND]
    return Ledger(tuple(entries), base, terms)


def _term(rng: random.Random) -> int:
    return rng.randint(1, 9) * rng.choice((1, -1))


def generate(split: Split, count: int, seed: int) -> list[Ledger]:
    """`count` distinct problems of one split, a function of the arguments alone."""
    rng = random.Random(f"ledger:{split.value}:{seed}")
    found: dict[Ledger, None] = {}
    while len(found) < count:
        ledger = draw_ledger(rng)
        if ledger.split is split:
            found[ledger] = None
    return list(found)


def to_rows(ledgers: Sequence[Ledger], split: Split) -> list[dict[str, object]]:
    """Rows in the format of verl's RL dataset."""
    return [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": one.question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(one.answer)},
            "extra_info": {"index": index, "split": split.value},
        }
        for index, one in enumerate(ledgers)
    ]


def write_parquet(path: str | Path, split: Split, count: int, seed: int) -> Path:
    """Write `count` problems of a split to `path` and return it; folders are made as needed."""
    import pandas as pd  # only writers need it

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(to_rows(generate(split, count, seed), split)).to_parquet(target, index=False)
    return target
