"""Problems that are easy in the right order and hard to begin: letters that stand on each other.

In `Find c:e=d;b=a;d=;c=b;a=` the letter `c` stands on `b`, `b` on `a`, and `a` on nothing. A letter is
worth its place in the alphabet (a 1, b 2, …), and what is asked is what a letter and all that it stands on
are worth together: here 1 + 2 + 3. Who is told the way back, `cba`, has only to add; who is not has to find
it among two mixed chains before the first step. Three splits share no problem: the split is a hash of the
two chains, whatever the order in which they are shown."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from marsrl_verl.demo.problems import Split, hashed_split, verl_row

DATA_SOURCE = "tiny_chains"
QUESTION_PREFIX = "Find "
LETTERS = "abcdefghi"


@dataclass(frozen=True, slots=True)
class Difficulty:
    """How long the chains are, in letters."""

    shortest: int = 2
    longest: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.shortest <= self.longest <= len(LETTERS) // 2:
            raise ValueError(
                f"difficulty: need 2 <= shortest <= longest <= {len(LETTERS) // 2}, found "
                f"{self.shortest} and {self.longest}"
            )


DEFAULT_DIFFICULTY = Difficulty()


def worth(letter: str) -> int:
    """A letter's place in the alphabet."""
    return LETTERS.index(letter) + 1


@dataclass(frozen=True, slots=True)
class Definition:
    """What a letter stands on."""

    letter: str
    base: str | None
    """Another letter; None: nothing."""

    def __str__(self) -> str:
        return f"{self.letter}={self.base or ''}"


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Definitions in the order in which they are shown, and the letter that is asked for."""

    definitions: tuple[Definition, ...]
    goal: str

    @property
    def question(self) -> str:
        """What is asked, e.g. `Find b:b=a;a=`."""
        return f"{QUESTION_PREFIX}{self.goal}:" + ";".join(map(str, self.definitions))

    def definition(self, letter: str) -> Definition:
        """A letter's."""
        return next(one for one in self.definitions if one.letter == letter)

    def trace(self, letter: str) -> str:
        """The letters on the way back from a letter to one that stands on nothing, the letter itself
        first."""
        found, one = letter, self.definition(letter)
        while one.base is not None:
            found, one = found + one.base, self.definition(one.base)
        return found

    @property
    def order(self) -> str:
        """The plan: the way back from the goal."""
        return self.trace(self.goal)

    @property
    def depth(self) -> int:
        """Letters on the way."""
        return len(self.order)

    @property
    def ends(self) -> tuple[str, ...]:
        """Letters that no other one stands on, the goal among them."""
        used = {one.base for one in self.definitions}
        return tuple(one.letter for one in self.definitions if one.letter not in used)

    @property
    def answer(self) -> int:
        """What the letters on the way are worth together."""
        return sum(map(worth, self.order))

    @property
    def split(self) -> Split:
        """The part of the task that this problem belongs to."""
        return hashed_split(repr((self.order, sorted(map(self.trace, self.ends)))))


def parse_question(question: str) -> Puzzle:
    """The puzzle behind a question; raises ValueError for any other text."""
    try:
        goal, _, rest = question.removeprefix(QUESTION_PREFIX).partition(":")
        puzzle = Puzzle(tuple(map(_definition, rest.split(";"))), goal)
        puzzle.order  # noqa: B018 — every letter on the way is defined
    except (ValueError, StopIteration, IndexError):
        raise ValueError(f"not a question of this task: {question!r}") from None
    if puzzle.question != question:
        raise ValueError(f"not a question of this task: {question!r}")
    return puzzle


def _definition(text: str) -> Definition:
    letter, _, base = text.partition("=")
    if letter not in LETTERS or len(letter) != 1 or len(base) > 1:
        raise ValueError(text)
    return Definition(letter, base or None)


def draw_puzzle(rng: random.Random, difficulty: Difficulty = DEFAULT_DIFFICULTY) -> Puzzle:
    """One random problem, of any split: two chains, of which one is asked for."""
    letters = rng.sample(LETTERS, len(LETTERS))
    first, second = (rng.randint(difficulty.shortest, difficulty.longest) for _ in range(2))
    chains = [letters[:first], letters[first : first + second]]
    definitions = [
        Definition(one, base) for chain in chains for base, one in zip([None, *chain], chain, strict=False)
    ]
    rng.shuffle(definitions)
    return Puzzle(tuple(definitions), letters[first - 1])


def puzzles(split: Split, seed: int, difficulty: Difficulty = DEFAULT_DIFFICULTY) -> Iterator[Puzzle]:
    """Distinct problems of one split without end, a function of the arguments alone."""
    rng, seen = random.Random(f"chains:{split.value}:{seed}"), set()
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


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` problems of a split as rows; `level` is the length of the chain."""
    return [
        verl_row(
            DATA_SOURCE, puzzle.question, puzzle.answer, index=index, split=split.value, level=puzzle.depth
        )
        for index, puzzle in enumerate(generate(split, count, seed))
    ]
