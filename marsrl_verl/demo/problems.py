"""Small arithmetic problems: sums and differences of a few small numbers.

A problem is a chain such as `7+5-3+8`, whose running totals never leave 0…29. Three splits share no
problem: the split of a problem is a hash of its *set of signed terms*, so even a reordering of the
same terms (`5+7+8-3`) lies in the same split.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

QUESTION_PREFIX = "Compute "
DATA_SOURCE = "tiny_arithmetic"
LARGEST_TOTAL = 29


class Split(str, Enum):
    """Part of the task that a problem belongs to; the parts share no problem."""

    WARM_START = "warm_start"
    """Transcripts of the supervised warm start."""
    TRAIN = "train"
    """Reinforcement learning."""
    HELD_OUT = "held_out"
    """Evaluation only."""


_SHARES = ((Split.WARM_START, 50), (Split.TRAIN, 30), (Split.HELD_OUT, 20))
"""Per cent of the problem space in each split."""


def hashed_split(key: str, shares: Sequence[tuple[Split, int]] = _SHARES) -> Split:
    """The part of a task that a problem belongs to, a stable function of its key."""
    bucket = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % 100
    for split, share in shares:
        if bucket < share:
            return split
        bucket -= share
    raise AssertionError("the shares of the splits must add up to 100")


@dataclass(frozen=True, slots=True)
class Difficulty:
    """Difficulty of the problems."""

    min_terms: int = 3
    max_terms: int = 5
    max_operand: int = 9

    def __post_init__(self) -> None:
        if not 2 <= self.min_terms <= self.max_terms:
            raise ValueError(
                f"difficulty: need 2 <= min_terms <= max_terms, found {self.min_terms} and {self.max_terms}"
            )
        if not 2 <= self.max_operand <= LARGEST_TOTAL:
            raise ValueError(
                f"difficulty: max_operand must lie in 2…{LARGEST_TOTAL}, found {self.max_operand}"
            )


DEFAULT_DIFFICULTY = Difficulty()


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a worked solution: `left sign right = result`, e.g. `12-3=9`."""

    left: int
    sign: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left}{self.sign}{self.right}={self.result}"


@dataclass(frozen=True, slots=True)
class Chain:
    """An arithmetic problem: signed terms, the first one positive."""

    terms: tuple[int, ...]

    @property
    def expression(self) -> str:
        """The chain as text, e.g. `7+5-3+8`."""
        return str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:])

    @property
    def question(self) -> str:
        """Question that the Solver is prompted with."""
        return QUESTION_PREFIX + self.expression

    @property
    def answer(self) -> int:
        """The value of the chain."""
        return sum(self.terms)

    def steps(self) -> list[Step]:
        """The worked solution, one step per term after the first."""
        steps, total = [], self.terms[0]
        for term in self.terms[1:]:
            steps.append(Step(total, "+" if term >= 0 else "-", abs(term), total + term))
            total += term
        return steps

    @property
    def split(self) -> Split:
        """The part of the task this problem belongs to; a stable function of its signed terms."""
        return hashed_split(",".join(map(str, sorted(self.terms))))


def parse_question(question: str) -> Chain:
    """The chain behind a question; raises ValueError for any other text."""
    expression = question.removeprefix(QUESTION_PREFIX)
    try:
        terms = tuple(int(part) for part in expression.replace("-", "+-").split("+"))
    except ValueError:
        raise ValueError(f"not a question of the tiny task: {question!r}") from None
    chain = Chain(terms)
    if chain.question != question:
        raise ValueError(f"not a question of the tiny task: {question!r}")
    return chain


def draw_chain(rng: random.Random, difficulty: Difficulty = DEFAULT_DIFFICULTY) -> Chain:
    """One random problem, of any split."""
    count = rng.randint(difficulty.min_terms, difficulty.max_terms)
    while True:
        terms = [rng.randint(1, difficulty.max_operand)]
        terms += [rng.randint(1, difficulty.max_operand) * rng.choice((1, -1)) for _ in range(count - 1)]
        if len(set(terms[1:])) < count - 1:
            continue
        totals = [sum(terms[: i + 1]) for i in range(count)]
        if min(totals) >= 0 and max(totals) <= LARGEST_TOTAL:
            return Chain(tuple(terms))


def generate(split: Split, count: int, seed: int, difficulty: Difficulty = DEFAULT_DIFFICULTY) -> list[Chain]:
    """`count` distinct problems of one split, a function of the arguments alone.

    Raises:
        ValueError: the split does not hold so many problems at this difficulty.
    """
    rng = random.Random(f"{split.value}:{seed}")
    found: dict[Chain, None] = {}
    misses = 0
    while len(found) < count:
        chain = draw_chain(rng, difficulty)
        is_new = chain.split is split and chain not in found
        misses = 0 if is_new else misses + 1
        if is_new:
            found[chain] = None
        elif misses > 50_000:
            raise ValueError(
                f"split {split.value} has too few problems at {difficulty}: asked for {count}, found "
                f"{len(found)}; raise max_terms or max_operand, or ask for fewer"
            )
    return list(found)


def verl_row(
    data_source: str, question: str, answer: object, ability: str = "math", **extra_info: Any
) -> dict[str, Any]:
    """A row in the format of verl's RL dataset; `data_source` is the task's name."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": str(answer)},
        "extra_info": extra_info,
    }


def rows(
    split: Split, count: int, seed: int, difficulty: Difficulty = DEFAULT_DIFFICULTY
) -> list[dict[str, Any]]:
    """`count` problems of a split as rows; every task has this function."""
    found = generate(split, count, seed, difficulty)
    return [
        verl_row(DATA_SOURCE, chain.question, chain.answer, index=index, split=split.value)
        for index, chain in enumerate(found)
    ]
