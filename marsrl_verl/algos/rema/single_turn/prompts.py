"""Prompts of the meta-thinking agent and the reasoning agent in a single turn (ReMA, arXiv 2503.09501, §3.2
and appendix G): contents follow its prompts, the wording is ours."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from marsrl_verl.algos.rema.prompts import system_and_user
from marsrl_verl.core.prompts import Example, Prompts, Wordings, WorkedExamples, problem_chat
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.rewards.extraction import boxes


class PlanPrompts(Prompts):
    """Words the chats of a plan, of a solution that follows it, and of the two baselines of one agent."""

    def problem(self, problem: Problem) -> tuple[Message, ...]:
        """Returns the prompt of one agent without a plan (VRP)."""
        return self.direct(problem)

    @abstractmethod
    def plan(self, problem: Problem) -> tuple[Message, ...]:
        """Asks the meta-thinking agent for a plan in plain text."""

    @abstractmethod
    def action(self, problem: Problem) -> tuple[Message, ...]:
        """Asks the meta-thinking agent for a plan as a JSON object with `action` and `output`."""

    @abstractmethod
    def solution(self, problem: Problem, plan: str) -> tuple[Message, ...]:
        """Asks the reasoning agent for a solution that follows `plan`, which is empty where there is none."""

    @abstractmethod
    def direct(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for a solution step by step (vanilla reasoning process, VRP)."""

    @abstractmethod
    def planned(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for a plan and a solution that follows it in one answer (meta-thinking reasoning process,
        MRP)."""

    @abstractmethod
    def has_answer(self, text: str) -> bool:
        """True if a text has an answer in the form that the prompts ask for."""


_TAGS = re.compile(
    r"\[[ \t]*(/?[ \t]*(?:(?:the[ \t]+)?(?:start|end)[ \t]+of\b[^\[\]\n]{0,60}|(?:user[ \t]+)?question|"
    r"provided[ \t]+instruction|evaluation[ \t]+plan)[ \t]*)\]",
    re.IGNORECASE,
)
"""Text that looks like one of the tags between the parts of a prompt."""


def quoted(text: str) -> str:
    """Returns a problem, a plan or an answer as part of a prompt: it can't repeat the tags between the parts,
    whose square brackets become round ones."""
    return _TAGS.sub(r"(\1)", text)


PLAN_SYSTEM = """\
You are an expert in mathematics who teaches a weak student. The student reads the question and what you \
write, and works out the answer alone.

Think about the question first. Then write down a high-level plan: what the question asks for, which \
facts or methods it needs, and the steps in the order in which to take them, so that the student can \
follow them one by one.

Do not solve the question yourself and never say what the answer is, in no form whatsoever: a plan that \
contains the answer is punished. End with the final instruction to the student."""

ACTION_SYSTEM = """\
You are an expert in mathematics. A student will answer a question with your help. Before that, choose \
one of three ways to help:

- DECOMPOSE: break the question into smaller questions, to be answered one after the other;
- REWRITE: say the question more simply and more clearly, without losing anything of it;
- EMPTY: nothing, if the question is best answered directly; the output is then empty.

Do not answer the question. Reply with one JSON object and nothing before or after it:

{"action": "DECOMPOSE", "output": "…"}"""

QUESTION_USER = "Here is the question:\n\n{question}"

SOLUTION_SYSTEM = """\
You are an expert in mathematics. You are given a question and an instruction how to approach it. Follow the \
instruction precisely, show every step of your work, and put the final answer in \\boxed{}."""

SOLUTION_USER = """\
[Question]
{question}
[End of Question]

[Provided Instruction]
{plan}
[End of Instruction]"""

DIRECT_SYSTEM = """\
You are an expert in mathematics. Reason step by step, and put the final answer in \\boxed{}."""

PLANNED_SYSTEM = """\
You are an expert in mathematics. First think about how to approach the question, and write down a plan \
as an instruction to yourself: the steps in the order in which to take them. Then follow your plan step \
by step, showing all of your work, and put the final answer in \\boxed{}."""


class MathPlanPrompts(PlanPrompts):
    """Prompts for mathematical problems with a final answer.

    The problem is the dataset's text alone: a system message of the dataset's own is not kept, since each
    role has one. Models' texts stand between tags that they can't repeat (`quoted`).

    Args:
        solver_instruction: appended to the problem for the agent that answers it.
        examples: by prompt (`plan`, `action`, `solution`, `direct`, `planned`), worked examples that are
            shown as earlier turns: `question` and `answer`, those of `solution` with `plan`.
    """

    def __init__(
        self, solver_instruction: str = "", examples: Mapping[str, Sequence[Example]] | None = None
    ) -> None:
        self.solver_instruction = solver_instruction
        wordings: Wordings = {
            "plan": self._plan, "action": self._action, "solution": self._solution, "direct": self._direct,
            "planned": self._planned,
        }  # fmt: skip
        self._examples = WorkedExamples(wordings, examples)

    def plan(self, problem: Problem) -> tuple[Message, ...]:
        """The prompt of a teacher who may not give the answer away."""
        return self._examples.chat("plan", problem)

    def action(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for one of the three actions as JSON."""
        return self._examples.chat("action", problem)

    def solution(self, problem: Problem, plan: str) -> tuple[Message, ...]:
        """Question and instruction between tags; without an instruction as `direct`."""
        return self._examples.chat("solution", problem, plan=plan) if plan.strip() else self.direct(problem)

    def direct(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for a solution step by step."""
        return self._examples.chat("direct", problem)

    def planned(self, problem: Problem) -> tuple[Message, ...]:
        """Asks for a plan, then for the solution that follows it."""
        return self._examples.chat("planned", problem)

    def _plan(self, problem: Problem) -> tuple[Message, ...]:
        return system_and_user(PLAN_SYSTEM, QUESTION_USER.format(question=problem.question))

    def _action(self, problem: Problem) -> tuple[Message, ...]:
        return system_and_user(ACTION_SYSTEM, QUESTION_USER.format(question=problem.question))

    def _solution(self, problem: Problem, plan: str) -> tuple[Message, ...]:
        user = SOLUTION_USER.format(question=quoted(self._question(problem)), plan=quoted(plan))
        return system_and_user(SOLUTION_SYSTEM, user)

    def _direct(self, problem: Problem) -> tuple[Message, ...]:
        return system_and_user(DIRECT_SYSTEM, self._question(problem))

    def _planned(self, problem: Problem) -> tuple[Message, ...]:
        return system_and_user(PLANNED_SYSTEM, self._question(problem))

    def has_answer(self, text: str) -> bool:
        r"""True if there is a complete `\boxed{…}` with something in it."""
        return any(content.strip() for _, content in boxes(text))

    def _question(self, problem: Problem) -> str:
        chat = problem_chat(Problem("", problem.question, ""), self.solver_instruction)
        return chat[-1]["content"]
