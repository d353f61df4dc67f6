"""Problems: a ledger of 24 labelled lines.

Most lines hold a number that the response copies. One, before the middle, is a sum: the response computes it
in the next line and names it `X`. A later one adds something to `X`, and the line after it is `Y`. Of the
lines behind `X` most ask whether a number is below or above a result, so that they have to look back at the
line where it was computed, and nowhere else is it written. Three lines hold a question mark: the response
writes any number there, and nothing depends on it. The answer is both results without a space between them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

from marsrl_verl.demo.problems import LARGEST_TOTAL, QUESTION_PREFIX, Split, hashed_split, verl_row

LINES = 24
LABELS = ascii_lowercase[:LINES]
FIRST, SECOND = "X", "Y"
_FIRST_LINES, _SECOND_LINES = range(9, 12), range(14, 18)
"""Where the two results are computed."""
_COMPARED = 0.8
"""Share of the lines after the first result that compare one."""
ANY = "?"
_ANY_LINES = 3
LIKED = tuple(str(number) for number in range(80, 90))
"""What the responses of the warm start write for a question mark."""
SMALLEST = 10
"""Of results: they are tokens of their own, as copied numbers are."""
DATA_SOURCE = "copy_chain"
COPIED, COMPARED, ANYTHING = "copied", "compared", "anything"
RESULTS = ("first result", "second result")
"""Kinds of lines."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """One problem."""

    entries: tuple[str, ...]
    """What the problem has in each line behind its label: a number, a sum, a name, a number and a name, or a
    question mark."""
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
    def answer(self) -> str:
        """Both results, so that no two mistakes make it right; as a list it would be right in any order."""
        return "".join(map(str, self.results))

    def kinds(self) -> list[str]:
        """What each line is: `copied`, `compared`, `anything` or one of `RESULTS`."""
        known = {FIRST: RESULTS[0], SECOND: RESULTS[1], ANY: ANYTHING}
        return [known.get(one) or (COMPARED if one[-1] in known else COPIED) for one in self.entries]

    def response(self, results: tuple[int, int] | None = None, liked: Sequence[str] = LIKED) -> str:
        """The lines with these results, and the answer that follows from them.

        Args:
            results: None: the right ones.
            liked: what stands for the question marks, in their order.
        """
        values = dict(zip((FIRST, SECOND), self.results if results is None else results, strict=True))
        anything = iter(liked)
        written = []
        for entry in self.entries:
            number, name = entry[:-1], entry[-1]
            if entry in values:
                entry += str(values[entry])
            elif name in values:
                entry += _relation(int(number), values[name])
            elif entry == ANY:
                entry += next(anything)
            elif entry.startswith(FIRST):
                entry = entry.replace(FIRST, str(values[FIRST]))
            written.append(entry)
        lines = map("".join, zip(LABELS, written, strict=True))
        return "\n".join([*lines, f"\\boxed{{{values[FIRST]}{values[SECOND]}}}"])

    def is_complete(self, response: str) -> bool:
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
        expected = self.response((first, follow if second is None else second)).splitlines()
        right = [
            line < len(lines) and (lines[line] == expected[line] or self._is_anything(line, lines[line]))
            for line in range(LINES)
        ]
        at_first, at_second = self.computed
        right[at_first] = right[at_first] and first == self.results[0]
        right[at_second] = right[at_second] and second == follow
        return list(zip(self.kinds(), right, strict=True))

    def _is_anything(self, line: int, written: str) -> bool:
        number = written.removeprefix(LABELS[line] + ANY)
        return self.entries[line] == ANY and number != written and number.isascii() and number.isdigit()

    @property
    def split(self) -> Split:
        """The part of the task that it belongs to; a stable function of what is computed in it."""
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
    others = [line for line in range(LINES) if line not in (first - 1, first, second - 1, second)]
    for line in rng.sample(others, _ANY_LINES):
        entries[line] = ANY
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


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` problems of a split as rows."""
    return [
        verl_row(DATA_SOURCE, ledger.question, ledger.answer, index=index, split=split.value)
        for index, ledger in enumerate(generate(split, count, seed))
    ]
