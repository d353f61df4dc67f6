"""Problems that are easy in the right order and hard to begin: values defined by each other.

A problem such as `Find c:d=4;b=a+3;c=b-2;a=5;e=d+1` has a chain of definitions that leads to what is asked
(`a`, `b`, `c`) and a chain that leads elsewhere (`d`, `e`), mixed. Who is told the order `c b a`,
backwards, computes from one definition to the next; who is not has to see through the whole chain before
the first step. Three splits share no problem: the split is a hash of what is computed, whatever the letters
and the order of the definitions."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from marsrl_verl.demo.problems import LARGEST_TOTAL, Split

DATA_SOURCE = "tiny_definitions"
QUESTION_PREFIX = "Find "
LETTERS = "abcdefghij"
LARGEST_TERM = 9
_SHARES = ((Split.WARM_START, 50), (Split.TRAIN, 30), (Split.HELD_OUT, 20))
"""Per cent of the problems in each split."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How long the chains are, in definitions."""

    shortest: int = 2
    longest: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.shortest <= self.longest <= len(LETTERS) // 2:
            raise ValueError(
                f"difficulty: need 2 <= shortest <= longest <= {len(LETTERS) // 2}, found "
                f"{self.shortest} and {self.longest}"
            )


DEFAULT_DIFFICULTY = Difficulty()


@dataclass(frozen=True, slots=True)
class Definition:
    """A letter's value: a number, or another letter's value and a term."""

    letter: str
    base: str | None
    """The letter that it is defined by; None: it is a number."""
    number: int
    """The number, or the signed term."""

    def __str__(self) -> str:
        return (
            f"{self.letter}={self.number}"
            if self.base is None
            else f"{self.letter}={self.base}{self.number:+d}"
        )


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Definitions in the order in which they are shown, and the letter that is asked for."""

    definitions: tuple[Definition, ...]
    goal: str

    @property
    def question(self) -> str:
        """What is asked, e.g. `Find b:b=a+3;a=5`."""
        return f"{QUESTION_PREFIX}{self.goal}:" + ";".join(map(str, self.definitions))

    def definition(self, letter: str) -> Definition:
        """A letter's."""
        return next(one for one in self.definitions if one.letter == letter)

    def trace(self, letter: str) -> str:
        """The letters on the way back from a letter to a number, the letter itself first."""
        found, one = letter, self.definition(letter)
        while one.base is not None:
            found, one = found + one.base, self.definition(one.base)
        return found

    @property
    def order(self) -> str:
        """The plan: from the goal back to the number at its beginning."""
        return self.trace(self.goal)

    @property
    def depth(self) -> int:
        """Definitions on the way to the goal."""
        return len(self.order)

    @property
    def ends(self) -> tuple[str, ...]:
        """Letters that no other one is defined by, the goal among them."""
        used = {one.base for one in self.definitions}
        return tuple(one.letter for one in self.definitions if one.letter not in used)

    @property
    def answer(self) -> int:
        """The goal's value."""
        return sum(self.definition(letter).number for letter in self.order)

    @property
    def split(self) -> Split:
        """The part of the world that this problem belongs to."""
        numbers = [[self.definition(one).number for one in reversed(self.trace(end))] for end in self.ends]
        mine = [self.definition(one).number for one in reversed(self.order)]
        content = repr((mine, sorted(numbers)))
        bucket = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "big") % 100
        for split, share in _SHARES:
            if bucket < share:
                return split
            bucket -= share
        raise AssertionError("the shares of the splits must add up to 100")


def parse_question(question: str) -> Puzzle:
    """The puzzle behind a question; raises ValueError for any other text."""
    try:
        goal, _, rest = question.removeprefix(QUESTION_PREFIX).partition(":")
        puzzle = Puzzle(tuple(map(_definition, rest.split(";"))), goal)
        puzzle.order  # noqa: B018 — every letter on the way is defined
    except (ValueError, StopIteration, IndexError):
        raise ValueError(f"not a question of this world: {question!r}") from None
    if puzzle.question != question:
        raise ValueError(f"not a question of this world: {question!r}")
    return puzzle


def _definition(text: str) -> Definition:
    letter, _, value = text.partition("=")
    return (
        Definition(letter, None, int(value))
        if value.isdigit()
        else Definition(letter, value[0], int(value[1:]))
    )


def draw_puzzle(rng: random.Random, difficulty: Difficulty = DEFAULT_DIFFICULTY) -> Puzzle:
    """One random problem, of any split: two chains, of which one is asked for."""
    letters = rng.sample(LETTERS, len(LETTERS))
    lengths = [rng.randint(difficulty.shortest, difficulty.longest) for _ in range(2)]
    chains = [_draw_chain(letters[: lengths[0]], rng), _draw_chain(letters[5 : 5 + lengths[1]], rng)]
    definitions = chains[0] + chains[1]
    rng.shuffle(definitions)
    return Puzzle(tuple(definitions), letters[lengths[0] - 1])


def _draw_chain(letters: Sequence[str], rng: random.Random) -> list[Definition]:
    total = rng.randint(0, LARGEST_TOTAL)
    found = [Definition(letters[0], None, total)]
    for before, letter in itertools.pairwise(letters):
        terms = [
            by for by in range(-LARGEST_TERM, LARGEST_TERM + 1) if by and 0 <= total + by <= LARGEST_TOTAL
        ]
        term = rng.choice(terms)
        total += term
        found.append(Definition(letter, before, term))
    return found


def puzzles(split: Split, seed: int, difficulty: Difficulty = DEFAULT_DIFFICULTY) -> Iterator[Puzzle]:
    """Distinct problems of one split without end, a function of the arguments alone."""
    rng, seen = random.Random(f"definitions:{split.value}:{seed}"), set()
    while True:
        puzzle = draw_puzzle(rng, difficulty)
        if puzzle.split is split and puzzle not in seen:
            seen.add(puzzle)
            yield puzzle


def generate(
    split: Split, count: int, seed: int, difficulty: Difficulty = DEFAULT_DIFFICULTY
) -> list[Puzzle]:
    """`count` distinct problems of one split."""
    found = puzzles(split, seed, difficulty)
    return [next(found) for _ in range(count)]


def to_rows(found: Sequence[Puzzle], split: Split) -> list[dict[str, object]]:
    """Rows in the format of verl's RL dataset; `level` is the length of the chain."""
    return [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": puzzle.question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(puzzle.answer)},
            "extra_info": {"index": index, "split": split.value, "level": puzzle.depth},
        }
        for index, puzzle in enumerate(found)
    ]


def write_parquet(path: str | Path, split: Split, count: int, seed: int) -> Path:
    """Write `count` problems of a split to `path` and return it; folders are made as needed."""
    import pandas as pd  # only writers need it

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(to_rows(generate(split, count, seed), split)).to_parquet(target, index=False)
    return target
