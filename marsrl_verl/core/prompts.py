"""How problems are worded, and how long prompts can become."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from marsrl_verl.core.request import Message, Problem

PromptTokens = Callable[[tuple[Message, ...]], int]
"""Number of tokens of a chat under the model's template, generation prompt included."""

NO_PROBLEM = Problem(problem_id="", question="", ground_truth="")
"""What prompts are worded around where only their own words count."""


class Prompts(ABC):
    """Words the chats of a method's roles. Pure functions: the same arguments give the same chat.

    Reasoning is never among the arguments; what is passed on is the text after the thinking part. A method
    whose roles read more than a problem has an abstract subclass of its own (`Method.Prompts`). A class that
    a configuration names takes its settings as keyword arguments (`marsrl.prompts.kwargs`).
    """

    step_distance: int = 4
    """Least distance in steps from which attention to a step counts as influence in responses to these
    prompts (arXiv 2509.26628, eq. 6), where the method's settings name none."""
    most_steps: int | None = None
    """Most steps of such a response; None: there is no limit."""

    @abstractmethod
    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """Ask for an answer to a problem."""

    def row_texts(self, problem: Problem) -> Mapping[str, str]:
        """Texts of a problem's row beside its question that some prompts show, by what they are called; the
        same names of every problem, also of `NO_PROBLEM`."""
        return {}


class ProblemPrompts(Prompts):
    """Problems as the data words them.

    Args:
        solver_instruction: appended to the problem, that is to the last user message of the dataset's chat.
    """

    def __init__(self, solver_instruction: str = "") -> None:
        self.solver_instruction = solver_instruction

    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """The dataset's own chat, or the problem text as one user message."""
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


@dataclass(frozen=True, slots=True)
class PromptShape:
    """What a role's longest prompt is made of, beside the problem."""

    role: str
    wording: tuple[Message, ...]
    """The chat without problem and responses."""
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Responses that it shows: what they are called -> the roles that may have written them."""
    most_tokens: Mapping[str, int] = field(default_factory=dict)
    """Most tokens of those that are parts of a response, by what they are called."""
    row_texts: tuple[str, ...] = ()
    """Texts of the problem's row that it shows beside the question (`Prompts.row_texts`)."""
