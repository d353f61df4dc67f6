"""Word problems: a number of things, and what happens to it.

    Tom has 4 bags with 6 marbles each. He gives 5 marbles to Anna. How many marbles does he have now?

Each is one or two steps of arithmetic, at six levels; the sixth wants a calculator. Splits share no
arithmetic: a problem's split is a hash of its numbers and signs, whatever the story is about.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.demo.problems import Split, hashed_split, verl_row

DATA_SOURCE = "word_problems"
LEVELS = (1, 2, 3)
"""Levels of problems in their order, unless others are named: one step, with numbers up to 20, 40 and 60. Of
two steps (4, 5) the model solves one in twenty; beside problems of one step it learns to write one line
for all."""


@dataclass(frozen=True, slots=True)
class Level:
    """Difficulty of a problem."""

    steps: int
    largest: int
    """Largest number in a question."""
    largest_total: int = 99
    """Largest result of a step."""


_LEVELS = {
    1: Level(1, 20), 2: Level(1, 40), 3: Level(1, 60), 4: Level(2, 6), 5: Level(2, 15), 6: Level(1, 99, 9999),
}  # fmt: skip
_MAX_DRAWS = 20_000
"""Most draws in a row without a new problem."""
_SHARES = ((Split.TRAIN, 75), (Split.HELD_OUT, 25))
_NAMES = ("Tom", "Ben", "Sam", "Max", "Leo", "Paul"), ("Anna", "Mia", "Lucy", "Emma", "Sara", "Nina")
_THINGS = ("apples", "marbles", "stickers", "coins", "pencils", "cards", "shells", "cookies")
_HOLDERS = ("bags", "boxes", "jars", "packs")
_GAINS = (
    "{name} buys {n} more {things}.",
    "{other} gives {name} {n} {things}.",
    "{name} finds {n} {things}.",
    "Then {name} gets {n} more {things}.",
)
_LOSSES = (
    "{name} gives {n} {things} to {other}.",
    "{name} loses {n} {things}.",
    "{name} sells {n} of the {things}.",
    "{other} takes {n} of the {things}.",
)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the arithmetic: `left sign right = result`."""

    left: int
    sign: str
    right: int

    @property
    def result(self) -> int:
        """Result of the line."""
        if self.sign == "+":
            return self.left + self.right
        return self.left - self.right if self.sign == "-" else self.left * self.right

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right} = {self.result}"


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A story and its arithmetic."""

    question: str
    steps: tuple[Step, ...]
    level: int

    @property
    def answer(self) -> int:
        """The result of the last step."""
        return self.steps[-1].result

    @property
    def split(self) -> Split:
        """A function of the arithmetic alone."""
        return hashed_split(arithmetic(self.steps), _SHARES)


def arithmetic(steps: Sequence[Step]) -> str:
    """The steps' numbers and signs, such as `4*6-5`; the smaller factor or summand of the first step
    first."""
    first = steps[0]
    pair = (first.left, first.right) if first.sign == "-" else sorted((first.left, first.right))
    return f"{pair[0]}{first.sign}{pair[1]}" + "".join(f"{one.sign}{one.right}" for one in steps[1:])


def solution(steps: Sequence[Step]) -> str:
    """A worked solution: the steps, then the answer in a box."""
    return "\n".join([*map(str, steps), rf"\boxed{{{steps[-1].result}}}"])


def draw(rng: random.Random, level: int) -> WordProblem:
    """A random problem of a level, of any split."""
    names = [rng.choice(_NAMES[0]), rng.choice(_NAMES[1])]
    rng.shuffle(names)
    words = {"name": names[0], "other": names[1], "things": rng.choice(_THINGS)}
    shape = _LEVELS[level]
    largest = shape.largest
    while True:
        steps: list[Step] = []
        story: list[str] = []
        if rng.random() < 1 / 3:
            most = max(4, largest // 3)
            steps.append(Step(rng.randint(2, most), "*", rng.randint(2, most)))
            holders = rng.choice(_HOLDERS)
            story.append(f"{{name}} has {steps[0].left} {holders} with {steps[0].right} {{things}} each.")
        total = steps[0].result if steps else rng.randint(2, largest)
        if not steps:
            story.append(f"{{name}} has {total} {{things}}.")
        while len(steps) < shape.steps:
            sign, n = rng.choice("+-"), rng.randint(2, largest)
            steps.append(Step(total, sign, n))
            total = steps[-1].result
            story.append(rng.choice(_GAINS if sign == "+" else _LOSSES).replace("{n}", str(n)))
        if all(0 < one.result <= shape.largest_total for one in steps):
            break
    ask = "How many {things} does {name} have now?"
    return WordProblem(" ".join([*story, ask]).format(**words), tuple(steps), level)


def generate(split: Split, count: int, seed: int, levels: Sequence[int] = LEVELS) -> list[WordProblem]:
    """`count` problems of a split, the levels in turn; a function of the arguments alone. Questions are
    distinct, and of held-out problems the arithmetic too: each says something new.

    Raises:
        ValueError: a level does not have so many.
    """
    rng = random.Random(f"{split.value}:{seed}")
    found: dict[str, WordProblem] = {}
    missed = 0
    while len(found) < count:
        level = levels[len(found) % len(levels)]
        one, before = draw(rng, level), len(found)
        if one.split is split:
            found.setdefault(arithmetic(one.steps) if split is Split.HELD_OUT else one.question, one)
        missed = 0 if len(found) > before else missed + 1
        if missed == _MAX_DRAWS:
            raise ValueError(
                f"{before} problems of {split.value} found, expected {count}: no more of level {level}"
            )
    return list(found.values())


def rows(split: Split, count: int, seed: int, levels: Sequence[int] = LEVELS) -> list[dict[str, Any]]:
    """`count` problems of a split as rows in the format of verl's RL dataset."""
    return [
        verl_row(DATA_SOURCE, one.question, one.answer, index=index, split=split.value, level=one.level)
        for index, one in enumerate(generate(split, count, seed, levels))
    ]
