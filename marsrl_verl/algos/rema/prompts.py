"""The two agents and their prompts (ReMA, arXiv 2503.09501, §3.2.2; the wording is ours)."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from marsrl_verl.core.method import Role
from marsrl_verl.core.prompts import Example, Prompts, Wordings, WorkedExamples
from marsrl_verl.core.request import Message, Problem

META_THINKING = "meta_thinking"
REASONING = "reasoning"
"""The roles, as `RolloutRequest.role` and the configuration name them."""
ROLES = (META_THINKING, REASONING)
AGENTS: Mapping[str, Role] = {
    META_THINKING: Role(reward="marsrl_verl.algos.rema.leak:PlanReward", may_be_frozen=True),
    REASONING: Role(answers=True, may_be_frozen=True),
}
FINISH = "[FINISH]"
"""Mark that the meta-thinking agent writes when it is content with the answer."""


def system_and_user(system: str, user: str) -> tuple[Message, ...]:
    """Returns a chat of one message of each."""
    return ({"role": "system", "content": system}, {"role": "user", "content": user})


class DialoguePrompts(Prompts):
    """Words the beginnings of the two lists of messages. Later messages are handed over as they are: an
    agent's message is the other's next user message."""

    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """Returns the meta-thinking agent's prompt."""
        return self.meta_thinking(problem)

    @abstractmethod
    def meta_thinking(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for the first instruction. It must tell the agent how to end the dialogue: with `FINISH`."""

    @abstractmethod
    def reasoning(self, problem: Problem, instruction: str) -> tuple[Message, ...]:
        """Asks to follow the first instruction."""


META_THINKING_SYSTEM = """\
You do the high-level thinking in a conversation about a mathematical problem. A partner does the detailed \
work: it carries out whatever you ask for and reports back.

In each message tell your partner what to do next. For example
- look at the problem from several sides and compare possible approaches;
- break the problem into clear steps and ask for one of them;
- judge the partner's results honestly and change the plan when they call for it;
- go back when an approach leads nowhere;
- ask for a second, independent solution.

Leave the calculations to your partner. When you are convinced of its result, confirm it, ask for the final \
answer and end your message with [FINISH]."""

REASONING_SYSTEM = """\
Reason step by step and follow the instruction that you are given. When you are asked to finalise your \
answer, put it in \\boxed{}."""

REASONING_USER = """\
Question:
{question}

Instruction:
{instruction}"""


_HEADING = re.compile(r"^(\s*)(Question|Instruction)(\s*):(\s*)$", re.MULTILINE)


def quoted(text: str) -> str:
    """Returns a question as part of a prompt: none of its lines is one of the prompt's own headings."""
    return _HEADING.sub(r"\1\2\3.\4", text)


class MathDialogue(DialoguePrompts):
    """Prompts for mathematical problems with a final answer.

    The meta-thinking agent's text is the last part of a prompt or a turn of its own, so that nothing of it
    passes for the prompt's own words; a question has none of its headings (`quoted`).

    Args:
        meta_thinking_system, reasoning_system: the system prompts; those of supervised data must be the same
            (`studies.rema_data.sft`).
        examples: by role, worked examples of the first message, shown as earlier turns: `question` and
            `answer`, those of the reasoning agent with `instruction`.
    """

    def __init__(
        self,
        meta_thinking_system: str = META_THINKING_SYSTEM,
        reasoning_system: str = REASONING_SYSTEM,
        examples: Mapping[str, Sequence[Example]] | None = None,
    ) -> None:
        self.meta_thinking_system, self.reasoning_system = meta_thinking_system, reasoning_system
        wordings: Wordings = {META_THINKING: self._meta_thinking, REASONING: self._reasoning}
        self._examples = WorkedExamples(wordings, examples)

    def meta_thinking(self, problem: Problem) -> tuple[Message, ...]:
        """The system prompt, and the question as user message."""
        return self._examples.chat(META_THINKING, problem)

    def reasoning(self, problem: Problem, instruction: str) -> tuple[Message, ...]:
        """The system prompt, and question and first instruction as user message."""
        return self._examples.chat(REASONING, problem, instruction=instruction)

    def _meta_thinking(self, problem: Problem) -> tuple[Message, ...]:
        return system_and_user(self.meta_thinking_system, problem.question)

    def _reasoning(self, problem: Problem, instruction: str) -> tuple[Message, ...]:
        user = REASONING_USER.format(question=quoted(problem.question), instruction=instruction)
        return system_and_user(self.reasoning_system, user)
