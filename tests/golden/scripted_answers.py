"""What the scripted models say in the golden traces: pure functions of names, without a class of the project.

Every draw is a hash of names, so that no generator's order of calls enters a trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

DELTA = 4
"""Steps that are followed by fewer than so many others have no influence."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates at which something goes wrong, each of one answer unless said otherwise."""

    error: float = 0.0
    aborted: float = 0.0
    refused: float = 0.0
    prompt_too_long: float = 0.0
    """Of a request: all of its answers."""
    ungraded: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """How long the answers are and what goes wrong."""

    lines: tuple[int, int] = (1, 6)
    """Fewest and most lines of thinking."""
    words: int = 2
    """Most words of a line."""
    faults: Faults = field(default_factory=Faults)


@dataclass(frozen=True, slots=True)
class Question:
    """What an answer depends on."""

    group: str
    problem: str
    role: str
    number: int
    """Of the answer in its group."""
    truth: str
    solution_right: bool | None
    """Whether the solution under judgement or repair is right."""
    beginning: str
    """The beginning of the response that is continued; empty: none."""


def chance(*names: str | int) -> float:
    """A number in [0, 1) that is a function of the names."""
    digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "little") / 2**64


def problem_question(number: int) -> str:
    """Every eleventh problem is long-winded."""
    words = " That is, find the number which this sum amounts to." if number % 11 == 6 else ""
    return f"{number} + {number % 7} = ?{words}"


def problem_truth(number: int) -> str:
    return str(number + number % 7)


@cache
def answer(world: World, question: Question) -> tuple[str, str]:
    """(text, ending) of an answer, or of what follows its beginning."""
    faults, name = world.faults, f"{question.group}#{question.number}"
    if chance("prompt too long", question.group) < faults.prompt_too_long:
        return "", "prompt_too_long"
    if chance("refused", name) < faults.refused:
        return "", "refused"
    for ending, rate in (("error", faults.error), ("aborted", faults.aborted)):
        if chance(ending, name) < rate:
            return "<think>then", ending
    body = _verdict(question, name) if question.role == "verifier" else _solution(question, name)
    if "</think>" in question.beginning:
        return f" again\n{body}", "stop"
    opening = "" if question.beginning else "<think>"
    return f"{opening}{_thinking(world, name)}</think>\n\n{body}", "stop"


def is_graded(world: World, name: str) -> bool:
    """Whether the grader of this answer works."""
    return chance("ungraded", name) >= world.faults.ungraded


def _thinking(world: World, name: str) -> str:
    least, most = world.lines
    text = ""
    for line in range(least + int(chance("lines", name) * (most - least + 1))):
        words = 1 + int(chance("words", name, line) * world.words)
        number = int(chance("number", name, line) * 100)
        text += f"step {line}" + f" with {number}" * words
        text += "\n\n" if chance("break", name, line) < 0.6 else "\n"
    return text


def _solution(question: Question, name: str) -> str:
    if question.solution_right is None:
        skill = (0.15, 0.5, 0.97)[int(3 * chance("difficulty", question.problem))]
    else:
        skill = 0.8 if question.solution_right else 0.5
    if chance("empty", name) < 0.03:
        return ""
    wrong = f"no {int(3 * chance('variant', name))}"
    return f"The answer is \\boxed{{{question.truth if chance('right', name) < skill else wrong}}}."


def _verdict(question: Question, name: str) -> str:
    if chance("no verdict", name) < 0.05:
        return "**Final Verdict**: I cannot tell."
    agrees = chance("agrees", name) < 0.7
    word = "Correct" if question.solution_right == agrees else "Wrong"
    return (
        f"**Final Verdict**: {word.lower()} ({int(9 * chance('remark', name))}).\n\n**Correctness**: {word}"
    )


# Of a token and its position, or of arrays of them; exact in float32.


def log_prob(token: Any, position: Any, version: int) -> Any:
    """What the engine says of a sampled token."""
    return -((token * 31 + position * 7 + version * 13) % 97) / 64


def trainer_log_prob(token: Any, position: Any, version: int) -> Any:
    """What the trainer's forward pass says of it."""
    return -((token * 17 + position * 5 + version * 11) % 89) / 64


def entropy(token: Any, position: Any) -> Any:
    """Of the distribution that the token was drawn from."""
    return ((token * 13 + position * 29) % 83) / 32


def influence(step_tokens: Sequence[Sequence[int]], thinking: int) -> tuple[float, ...]:
    """Of every step of a response: 0 for the first, the last `DELTA` and those from `thinking` on."""
    found = []
    for step, tokens in enumerate(step_tokens):
        measured = 0 < step < min(thinking, len(step_tokens) - DELTA)
        found.append(1 / 64 + int(64 * chance("influence", *tokens)) / 64 if measured else 0.0)
    return tuple(found)
