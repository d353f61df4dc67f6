r"""Transcripts of tool use for the warm start, in both protocols.

    <think>look up</think><search>price Kalomi</search><result>…</result><think>compute</think><python>…
    <think>look up</think><tool_call>{"name": "search", …}</tool_call><|end|><|tool|>…<|end|><|assistant|>…

The careful way calls what the problem needs, follows a page that refers to another thing, and writes down
what it has found. The careless habits, which reinforcement learning can unlearn: to guess without a call or
in spite of its result, to give up where a page refers to another thing, to mistype what is called, and to
stop half-way. What the policy is about to do stands in its thought, a word.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from marsrl_verl.core.request import Message
from marsrl_verl.settings.choices import Choice
from studies.toy_tasks.tool_task import tokenizer as words
from studies.toy_tasks.tool_task.problems import (
    ATTRIBUTES,
    PYTHON,
    SEARCH,
    SYLLABLES,
    Call,
    ToolProblem,
    document_text,
    draw_name,
    draw_number,
    program,
    reference_text,
)

_MADE_UP = 0.1
"""Loss weight of a guessed number, of which nothing can be learnt but that it is one."""


class Protocol(Choice):
    """How calls are written."""

    TAGS = "tags"
    """As tags inside one message."""
    CHAT = "chat"
    """As the chat template's tool calls, a message each."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the careless way is taken."""

    guesses: float = 0.2
    """Share of problems that are answered without a call."""
    slips: float = 0.15
    """Share of calls with a mistyped argument; what they find is taken for the right thing."""
    gives_up: float = 0.6
    """Share of references that are not followed: the answer is a guess."""
    ignores: float = 0.05
    """Share of numbers found in spite of which the answer is a guess."""
    stops: float = 0.1
    """Share of numbers found, before the last call, that are taken for the answer."""


DEFAULT_HABITS = Habits()
CAREFUL = Habits(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a transcript."""

    text: str
    weight: float = 0.0
    """What it counts in the loss: 1 where the policy writes it, 0 where it is read only."""


@dataclass(frozen=True, slots=True)
class ToolTranscript:
    """A prompt and what follows: text of the policy and results in turn."""

    messages: tuple[Message, ...]
    pieces: tuple[Piece, ...]
    protocol: Protocol


class Writer:
    """Writes calls, results and answers as the protocol has them.

    Args:
        protocol: the tags are those of `rollout.tool_protocol`, the messages those of the chat template.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.pieces: list[Piece] = []

    def call(self, thought: str, tool: str, argument: str) -> None:
        """What the policy writes to call a tool."""
        if self.protocol is Protocol.TAGS:
            self._own(f"{_thought(thought)}<{tool}>{argument}</{tool}>")
            return
        head = words.SEARCH_CALL if tool == SEARCH else words.PYTHON_CALL
        opened, closed = words.CALL_TAGS
        self._own(f"{_thought(thought)}{opened}\n{head}{argument}{words.CALL_END}\n{closed}{words.END}")

    def result(self, text: str) -> None:
        """What it reads then."""
        if self.protocol is Protocol.TAGS:
            shown = f" <result>\n{text}\n</result>"
        else:
            markers = words.ROLE_MARKERS
            shown = f"{markers['tool']}{text}{words.END}{markers['assistant']}"
        self.pieces.append(Piece(shown))

    def answer(self, thought: str, number: int) -> None:
        """What it ends with."""
        opened, closed = ("<answer>", "</answer>") if self.protocol is Protocol.TAGS else ("", "")
        self._own(f"{_thought(thought)}{opened}\\boxed{{")
        self._own(str(number), _MADE_UP if thought == words.GUESS else 1.0)
        self._own(f"}}{closed}{words.END}")

    def _own(self, text: str, weight: float = 1.0) -> None:
        self.pieces.append(Piece(text, weight))


def _thought(word: str) -> str:
    return f"<think>{word}</think>"


def draw_transcript(
    problem: ToolProblem, protocol: Protocol, rng: random.Random, habits: Habits = DEFAULT_HABITS
) -> ToolTranscript:
    """A random transcript of this problem."""
    writer = Writer(protocol)
    _solve(problem, writer, rng, habits)
    messages = ({"role": "user", "content": problem.question},)
    return ToolTranscript(messages, tuple(writer.pieces), protocol)


def _solve(problem: ToolProblem, writer: Writer, rng: random.Random, habits: Habits) -> None:
    guessed = guess(problem.answer, rng)
    if rng.random() < habits.guesses:
        return writer.answer(words.GUESS, guessed)
    found: list[int | str] = []
    while (expected := problem.call(found)) is not None:
        made = slip(expected, rng) if rng.random() < habits.slips else expected
        refers = isinstance(made.found, str)
        intent = words.COMPUTE if made.tool == PYTHON else words.AGAIN if found else words.LOOK_UP
        writer.call(intent, made.tool, made.argument)
        writer.result(shown_result(made, expected, rng))
        found.append(made.found)
        if rng.random() < (habits.gives_up if refers else habits.ignores):
            return writer.answer(words.GUESS, guessed)
        if not refers and problem.call(found) is not None and rng.random() < habits.stops:
            break
    return writer.answer(words.ANSWER, int(found[-1]))


def guess(answer: int, rng: random.Random) -> int:
    """A number with as many digits."""
    digits = len(str(answer))
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


def slip(call: Call, rng: random.Random) -> Call:
    """The call with a wrong syllable in the name, or a wrong digit in a factor: it finds something else."""
    if call.tool == SEARCH:
        attribute, name = call.argument.split()
        return Call(SEARCH, f"{attribute} {_misspelt(name, rng)}", draw_number(rng))
    factors = [int(part) for part in call.argument.removeprefix("print(").removesuffix(")").split("*")]
    at = rng.randrange(len(factors))
    factors[at] = _mistyped(factors[at], rng)
    return Call(PYTHON, program(*factors), factors[0] * factors[1])


def _misspelt(name: str, rng: random.Random) -> str:
    at = 2 * rng.randrange(len(name) // 2)
    other = rng.choice([one for one in SYLLABLES if one != name[at : at + 2].lower()])
    return (name[:at] + other + name[at + 2 :]).capitalize()


def _mistyped(number: int, rng: random.Random) -> int:
    digits = list(str(number))
    at = rng.randrange(len(digits))
    digits[at] = rng.choice([one for one in "123456789" if one != digits[at]])
    return int("".join(digits))


def shown_result(call: Call, expected: Call, rng: random.Random) -> str:
    """What the tool says: the product, or the page of the thing that a search has found, in the form of the
    search tool's results. A misspelt name finds some other thing."""
    if call.tool == PYTHON:
        return str(call.found)
    attribute, name = call.argument.split()
    if isinstance(call.found, str):
        return f"Page 1 ({name}): {reference_text(call.found)}"
    if call != expected:
        name = draw_name(rng)
    values = {one: draw_number(rng) for one in ATTRIBUTES}
    values[attribute] = call.found
    return f"Page 1 ({name}): {document_text(values)}"
