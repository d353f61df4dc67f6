"""Wording of problems, and the longest prompts that it can give."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marsrl_verl.core.request import Message, Problem

NO_PROBLEM = Problem(problem_id="", question="", ground_truth="")
"""Stands for a problem where only a prompt's own words count."""
PLACEHOLDER = Problem(problem_id="", question="{problem}", ground_truth="")
"""Stands for a problem where a prompt is read as a template."""


class Prompts(ABC):
    """Words the chats of a method's roles. Pure functions: the same arguments give the same chat.

    Reasoning is never among the arguments; what is passed on is the text after the thinking part. A method
    whose roles read more than a problem has an abstract subclass of its own (`Method.Prompts`). A class that
    a configuration names takes its settings as keyword arguments (`marsrl.prompts.kwargs`).
    """

    step_distance: int = 4
    """Least distance in steps from which attention to a step counts as influence in responses to these
    prompts (arXiv 2509.26628, eq. 6), where the method's settings name none."""
    max_steps: int | None = None
    """Most steps of such a response; None: there is no limit."""

    @abstractmethod
    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """The chat that asks for an answer to a problem."""

    def row_texts(self, problem: Problem) -> Mapping[str, str]:
        """Texts of a problem's row beside its question that some prompts show, by what they are called; the
        same names of every problem, also of `NO_PROBLEM`."""
        return {}


def interface(cls: type[Prompts]) -> type[Prompts]:
    """The abstract class that `cls` implements: what other classes of the same wordings derive from."""
    return next(base for base in cls.__mro__ if issubclass(base, Prompts) and inspect.isabstract(base))


def target_of(cls: type[Prompts]) -> str:
    """A class as `marsrl.prompts.target` names it."""
    return f"{cls.__module__}:{cls.__qualname__}"


Chat = tuple[Message, ...]
Example = Mapping[str, str]
"""A worked example: `question`, by name what else a prompt shows (`solution`, `report`, …), and `answer`,
what is to be written then."""

Wordings = Mapping[str, Callable[..., Chat]]
"""Wording of each kind of chat, by its name: a function of the problem and of what else the chat shows."""


class WorkedExamples:
    """Worked examples as earlier turns of a chat, worded as the chat itself.

    Args:
        wordings: of the chats without examples.
        examples: by the same names.

    Raises:
        ValueError: an example of a chat that there is not, or one without what the chat shows.
    """

    def __init__(self, wordings: Wordings, examples: Mapping[str, Sequence[Example]] | None) -> None:
        self._wordings, self._turns = wordings, dict[str, list[Message]]()
        for name, found in (examples or {}).items():
            if name not in wordings:
                raise ValueError(f"examples of {name!r}: expected those of {', '.join(wordings)}")
            self._turns[name] = [
                message for k, one in enumerate(found) for message in self._example(f"{name}[{k}]", name, one)
            ]

    def _example(self, where: str, name: str, example: Example) -> list[Message]:
        wording = self._wordings[name]
        shown = list(inspect.signature(wording).parameters)[1:]
        expected = ["question", *shown, "answer"]
        if sorted(example) != sorted(expected):
            raise ValueError(f"examples.{where} has {list(example)}, expected {expected}")
        texts = {key: str(example[key]) for key in expected}
        chat = wording(Problem("", texts["question"], ""), **{key: texts[key] for key in shown})
        asked = [message for message in chat if message["role"] != "system"]
        return [*asked, {"role": "assistant", "content": texts["answer"]}]

    def chat(self, name: str, problem: Problem, **shown: Any) -> Chat:
        """The chat of a kind: its leading system messages, the examples, then what is asked."""
        asked = self._wordings[name](problem, **shown)
        begins = next((k for k, one in enumerate(asked) if one["role"] != "system"), len(asked))
        turns = (dict(message) for message in self._turns.get(name, ()))
        return (*asked[:begins], *turns, *asked[begins:])


class ProblemPrompts(Prompts):
    """Problems as the data words them.

    Args:
        solver_instruction: appended to the problem, that is to the last user message of the dataset's chat.
        examples: worked examples of `problem` (`question`, `answer`), shown as earlier turns.
    """

    def __init__(
        self, solver_instruction: str = "", examples: Mapping[str, Sequence[Example]] | None = None
    ) -> None:
        self.solver_instruction = solver_instruction
        self._examples = WorkedExamples({"problem": self._problem}, examples)

    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """The dataset's own chat, or the problem text as one user message."""
        return self._examples.chat("problem", problem)

    def _problem(self, problem: Problem) -> tuple[Message, ...]:
        return problem_chat(problem, self.solver_instruction)


def problem_chat(problem: Problem, instruction: str = "") -> tuple[Message, ...]:
    """The dataset's own chat, or the problem text as one user message; the instruction ends the last message
    of the user."""
    chat = [dict(message) for message in problem.messages]
    chat = chat or [{"role": "user", "content": problem.question}]
    if instruction:
        last = max((i for i, one in enumerate(chat) if one["role"] == "user"), default=len(chat) - 1)
        chat[last]["content"] += "\n\n" + instruction
    return tuple(chat)


Shown = Callable[[str], str]
"""Gives the text that stands for a response which a prompt shows, by its name there."""


def no_text(name: str) -> str:
    """An empty text, where only the prompt's own words count."""
    return ""


def placeholder(name: str) -> str:
    """Its name in braces, beside `PLACEHOLDER`."""
    return f"{{{name}}}"


@dataclass(frozen=True, slots=True)
class PromptShape:
    """Parts of a role's longest prompt, beside the problem."""

    role: str
    wording: tuple[Message, ...]
    """The chat around the problem and the responses that `Method.prompt_shapes` was given."""
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Responses that it shows: what they are called -> the roles that may have written them."""
    max_tokens: Mapping[str, int] = field(default_factory=dict)
    """Most tokens of those that are parts of a response, by what they are called."""
    row_texts: tuple[str, ...] = ()
    """Texts of the problem's row that it shows beside the question (`Prompts.row_texts`)."""
