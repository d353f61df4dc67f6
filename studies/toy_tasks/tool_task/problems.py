"""Problems that need tools: products of numbers (Python), facts of a generated corpus (search), and both.

A fact is a number of two digits that is drawn for a made-up thing: nothing but the corpus tells it, on the
thing's own page or, where that page refers to another thing, on the other one's. Three splits share no
problem and no thing: the split of a thing is a hash of its name, that of a product a hash of its factors.
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

DATA_SOURCE = "tool_task"
_SEED = "tool_world"
"""The data's former name, with which published runs drew their problems."""
PYTHON, SEARCH = "python", "search"
"""The tools, by the names that they are called by."""
CONSONANTS, VOWELS = "bdfklmrz", "aeio"
SYLLABLES = tuple(consonant + vowel for consonant in CONSONANTS for vowel in VOWELS)
_SYLLABLES_OF_A_NAME = 2
ATTRIBUTES = ("price", "weight")
SMALLEST, LARGEST = 11, 99
"""Facts and factors have two digits."""
NAMES = 1000
"""Things in the task, those of the warm start included."""
DEPTHS = (2, 2, 1)
"""How many things, of five, have their numbers on their own page, one page and two pages further."""
_SHARES = ((Split.WARM_START, 50), (Split.TRAIN, 35), (Split.HELD_OUT, 15))
"""Per cent of the things, and of the products, in each split."""


class Kind(Choice):
    """What a problem needs."""

    PRODUCT = "product"
    """A product of two numbers: one call of Python."""
    FACT = "fact"
    """A number in the corpus: a search, and one more for each reference."""
    FACT_PRODUCT = "fact_product"
    """Such a number times a given one: the searches, then Python."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a problem needs."""

    tool: str
    argument: str
    """The query, or the program."""
    found: int | str
    """The number that it finds, or the thing that the page refers to."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that the corpus has of a thing."""

    name: str
    attribute: str
    value: int
    references: tuple[str, ...] = ()
    """The things that its page refers to, one after the other; the last one's page has the number."""

    def search(self, name: str) -> Call:
        """The call that finds the page of this thing, or of one that it refers to."""
        pages = (self.name, *self.references)
        after = pages[pages.index(name) + 1 :]
        return Call(SEARCH, f"{self.attribute} {name}", after[0] if after else self.value)

    def __str__(self) -> str:
        return f"the {self.attribute} of {self.name}"


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A number that is asked for: a fact, or a product."""

    kind: Kind
    parts: tuple[int | Fact, ...]
    """The fact or the factors; a fact stands first."""

    @property
    def question(self) -> str:
        """What the policy is asked."""
        if self.kind is Kind.PRODUCT:
            return f"Compute {self.parts[0]}*{self.parts[1]}"
        return "What is " + " times ".join(map(str, self.parts)) + "?"

    @property
    def referred(self) -> bool:
        """Whether the page of its thing refers to another one."""
        return isinstance(self.parts[0], Fact) and bool(self.parts[0].references)

    @property
    def answer(self) -> int:
        """What is right."""
        found = self.calls()[-1].found
        assert isinstance(found, int)
        return found

    def calls(self) -> list[Call]:
        """What has to be called, in order."""
        made: list[Call] = []
        while (call := self.call([one.found for one in made])) is not None:
            made.append(call)
        return made

    def call(self, found: Sequence[int | str]) -> Call | None:
        """What has to be called next, after calls that have found this; None: nothing."""
        first, *others = self.parts
        numbers = [one for one in found if isinstance(one, int)]
        if isinstance(first, Fact):
            if not numbers:
                return first.search(str(found[-1]) if found else first.name)
            first = numbers.pop(0)
        if numbers or not others:
            return None
        second = others[0]
        assert isinstance(second, int)
        return Call(PYTHON, program(first, second), first * second)

    @property
    def ability(self) -> str:
        """What kind of grader it takes, as rows of verl's format say."""
        return "math" if self.kind is Kind.PRODUCT else "qa"


def program(left: int, right: int) -> str:
    """The program that multiplies."""
    return f"print({left}*{right})"


def split_of(*key: str | int) -> Split:
    """The part of the task that a name or a pair of factors belongs to."""
    return hashed_split(",".join(map(str, key)), _SHARES)


def names(split: Split) -> list[str]:
    """The things of a split, in an order of their own."""
    rng = random.Random(_SEED)
    every: dict[str, None] = {}
    while len(every) < NAMES:
        every[draw_name(rng)] = None
    return [name for name in every if split_of(name) is split]


class Corpus:
    """What the pages of a split's things say, a function of the arguments.

    Of a thing that refers to another one only the last page of the chain has numbers.
    """

    def __init__(self, split: Split, seed: int) -> None:
        self.seed = seed
        self.names = names(split)
        self._by_depth: list[list[str]] = [[] for _ in DEPTHS]
        for name in self.names:
            self._by_depth[self.depth(name)].append(name)

    def depth(self, name: str) -> int:
        """How many references stand between a thing and its numbers."""
        drawn = derive_seed(self.seed, "depth", name) % sum(DEPTHS)
        return sum(drawn >= sum(DEPTHS[: depth + 1]) for depth in range(len(DEPTHS)))

    def references(self, name: str) -> tuple[str, ...]:
        """The things that its page refers to, one after the other."""
        if not (depth := self.depth(name)):
            return ()
        others = self._by_depth[depth - 1]
        other = others[derive_seed(self.seed, "reference", name) % len(others)]
        return (other, *self.references(other))

    def value(self, name: str, attribute: str) -> int:
        """A number on a thing's own page."""
        return SMALLEST + derive_seed(self.seed, "fact", name, attribute) % (LARGEST - SMALLEST + 1)

    def fact(self, name: str, attribute: str) -> Fact:
        """What there is to find of a thing."""
        references = self.references(name)
        return Fact(name, attribute, self.value((name, *references)[-1], attribute), references)

    def documents(self) -> Iterator[dict[str, str]]:
        """The page of each thing."""
        for name in self.names:
            if references := self.references(name):
                text = reference_text(references[0])
            else:
                text = document_text({one: self.value(name, one) for one in ATTRIBUTES})
            yield {"id": name.lower(), "title": name, "text": text}


class Drawer:
    """Draws problems of one split.

    Args:
        seed: of the corpus; None: every fact is drawn anew, so that none can be learnt by heart.
    """

    def __init__(self, split: Split, seed: int | None, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        self.split, self.kinds = split, tuple(kinds)
        self.names = names(split)
        self.corpus = None if seed is None else Corpus(split, seed)

    def draw(self, rng: random.Random) -> ToolProblem:
        """A random problem."""
        kind = rng.choice(self.kinds)
        if kind is Kind.PRODUCT:
            return ToolProblem(kind, self._factors(rng))
        fact = self._fact(rng)
        return ToolProblem(kind, (fact,) if kind is Kind.FACT else (fact, draw_number(rng)))

    def _fact(self, rng: random.Random) -> Fact:
        attribute = rng.choice(ATTRIBUTES)
        if self.corpus is not None:
            return self.corpus.fact(rng.choice(self.names), attribute)
        depth = rng.choices(range(len(DEPTHS)), DEPTHS)[0]
        name, *references = rng.sample(self.names, 1 + depth)
        return Fact(name, attribute, draw_number(rng), tuple(references))

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
    drawer, rng = Drawer(split, seed, kinds), random.Random(f"{_SEED}:{split.value}:{seed}")
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
    """The corpus: a page about each thing that training and evaluation ask for, or refer to."""
    for split in (Split.TRAIN, Split.HELD_OUT):
        yield from Corpus(split, seed).documents()


def document_text(values: Mapping[str, int]) -> str:
    """A page with the numbers of its thing, by attribute."""
    return ", ".join(f"{attribute} {value}" for attribute, value in values.items())


def reference_text(name: str) -> str:
    """A page that refers to another thing."""
    return f"see {name}"


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
    """Writes the corpus, a JSON object with `id`, `title` and `text` on each line."""
    lines = (json.dumps(one) + "\n" for one in documents(seed))
    path.write_text("".join(lines), encoding="utf-8")
    return path
