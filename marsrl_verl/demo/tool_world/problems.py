"""Problems that need tools: products of numbers (Python), facts of a generated corpus (search), and both.

A fact is a number of two digits that is drawn for a made-up thing: nothing but the corpus tells it. Three
splits share no problem and no thing: the split of a thing is a hash of its name, that of a product a hash of
its factors.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marsrl_verl.core.seeding import derive_seed
from marsrl_verl.demo.problems import Split, hashed_split, verl_row
from marsrl_verl.settings.choices import Choice

DATA_SOURCE = "tool_world"
PYTHON, SEARCH = "python", "search"
"""The tools, by the names that they are called by."""
CONSONANTS, VOWELS = "bdfklmrz", "aeio"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
_SYLLABLES_OF_A_NAME = 2
ATTRIBUTES = ("price", "weight")
SMALLEST, LARGEST = 11, 99
"""Facts and factors have two digits."""
NAMES = 1000
"""Things in the world, those of the warm start included."""
_SHARES = ((Split.WARM_START, 50), (Split.TRAIN, 35), (Split.HELD_OUT, 15))
"""Per cent of the things, and of the products, in each split."""


class Kind(Choice):
    """What a problem needs."""

    PRODUCT = "product"
    """A product of two numbers: one call of Python."""
    FACT = "fact"
    """A number in the corpus: one search."""
    FACT_PRODUCT = "fact_product"
    """Such a number times a given one: a search, then Python."""
    TWO_FACTS = "two_facts"
    """The product of two such numbers: two searches, then Python."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that the corpus has of a thing."""

    name: str
    attribute: str
    value: int

    @property
    def query(self) -> str:
        """What finds it."""
        return f"{self.attribute} {self.name}"

    def __str__(self) -> str:
        return f"the {self.attribute} of {self.name}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a problem needs."""

    tool: str
    argument: str
    """The query, or the program."""
    value: int
    """What it finds."""


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A number that is asked for: the product of its parts, or the only one."""

    kind: Kind
    parts: tuple[int | Fact, ...]

    @property
    def question(self) -> str:
        """What the policy is asked."""
        if self.kind is Kind.PRODUCT:
            return f"Compute {self.parts[0]}*{self.parts[1]}"
        return "What is " + " times ".join(map(str, self.parts)) + "?"

    @property
    def answer(self) -> int:
        """What is right."""
        return self.calls()[-1].value

    def calls(self) -> list[Call]:
        """What has to be called, in order."""
        found: list[Call] = []
        for _ in range(self.facts + (len(self.parts) > 1)):
            found.append(self.call([one.value for one in found]))
        return found

    @property
    def facts(self) -> int:
        """How many of its parts stand in the corpus."""
        return sum(isinstance(one, Fact) for one in self.parts)

    def call(self, results: Sequence[int]) -> Call:
        """What has to be called next, after calls that have found these numbers."""
        if len(results) < self.facts:
            fact = [one for one in self.parts if isinstance(one, Fact)][len(results)]
            return Call(SEARCH, fact.query, fact.value)
        known = iter(results)
        left, right = (next(known) if isinstance(one, Fact) else one for one in self.parts)
        return Call(PYTHON, program(left, right), left * right)

    @property
    def ability(self) -> str:
        """What kind of grader it takes, as rows of verl's format say."""
        return "math" if self.kind is Kind.PRODUCT else "qa"


def program(left: int, right: int) -> str:
    """The program that multiplies."""
    return f"print({left}*{right})"


def value_of(name: str, attribute: str, seed: int) -> int:
    """What the corpus says of a thing; a function of the arguments."""
    return SMALLEST + derive_seed(seed, "fact", name, attribute) % (LARGEST - SMALLEST + 1)


def split_of(*key: str | int) -> Split:
    """The part of the world that a name or a pair of factors belongs to."""
    return hashed_split(",".join(map(str, key)), _SHARES)


def names(split: Split) -> list[str]:
    """The things of a split, in an order of their own."""
    rng = random.Random(DATA_SOURCE)
    every: dict[str, None] = {}
    while len(every) < NAMES:
        every[draw_name(rng)] = None
    return [name for name in every if split_of(name) is split]


class Drawer:
    """Draws problems of one split.

    Args:
        seed: of the corpus; None: every fact is drawn anew, so that none can be learnt by heart.
    """

    def __init__(self, split: Split, seed: int | None, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        self.split, self.seed, self.kinds = split, seed, tuple(kinds)
        self.names = names(split)

    def draw(self, rng: random.Random) -> ToolProblem:
        """A random problem."""
        kind = rng.choice(self.kinds)
        if kind is Kind.PRODUCT:
            return ToolProblem(kind, self._factors(rng))
        first, second = (self._fact(name, rng) for name in rng.sample(self.names, 2))
        if kind is Kind.FACT:
            return ToolProblem(kind, (first,))
        return ToolProblem(kind, (first, second if kind is Kind.TWO_FACTS else draw_number(rng)))

    def _fact(self, name: str, rng: random.Random) -> Fact:
        attribute = rng.choice(ATTRIBUTES)
        value = draw_number(rng) if self.seed is None else value_of(name, attribute, self.seed)
        return Fact(name, attribute, value)

    def _factors(self, rng: random.Random) -> tuple[int, int]:
        while True:
            pair = draw_number(rng), draw_number(rng)
            if split_of(*sorted(pair)) is self.split:
                return pair


def draw_name(rng: random.Random) -> str:
    """What a thing may be called."""
    return "".join(rng.choices(SYLLABLES, k=_SYLLABLES_OF_A_NAME)).capitalize()


def draw_number(rng: random.Random) -> int:
    """A factor, or a fact."""
    return rng.randint(SMALLEST, LARGEST)


def generate(split: Split, count: int, seed: int, kinds: Sequence[Kind] = tuple(Kind)) -> list[ToolProblem]:
    """`count` distinct problems of a split, a function of the arguments alone."""
    drawer, rng = Drawer(split, seed, kinds), random.Random(f"{DATA_SOURCE}:{split.value}:{seed}")
    found: dict[ToolProblem, None] = {}
    misses = 0
    while len(found) < count:
        before = len(found)
        found[drawer.draw(rng)] = None
        misses = misses + 1 if len(found) == before else 0
        if misses > 50_000:
            raise ValueError(
                f"split {split.value} has too few problems of {', '.join(map(str, kinds))}: asked for "
                f"{count}, found {len(found)}; ask for fewer"
            )
    return list(found)


def documents(seed: int) -> Iterator[dict[str, str]]:
    """The corpus: a short text about each thing that training and evaluation ask for."""
    for split in (Split.TRAIN, Split.HELD_OUT):
        for name in names(split):
            values = {attribute: value_of(name, attribute, seed) for attribute in ATTRIBUTES}
            yield {"id": name.lower(), "title": name, "text": document_text(values)}


def document_text(values: Mapping[str, int]) -> str:
    """What the corpus says about a thing, by attribute."""
    return ", ".join(f"{attribute} {value}" for attribute, value in values.items())


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` problems of a split as rows; `calls`: how many it takes."""
    return [
        verl_row(
            DATA_SOURCE,
            one.question,
            one.answer,
            one.ability,
            index=index,
            split=split.value,
            kind=one.kind.value,
            calls=len(one.calls()),
        )
        for index, one in enumerate(generate(split, count, seed))
    ]


def write_corpus(path: Path, seed: int) -> Path:
    """Write the corpus, a JSON object with `id`, `title` and `text` on each line."""
    lines = (json.dumps(one) + "\n" for one in documents(seed))
    path.write_text("".join(lines), encoding="utf-8")
    return path
