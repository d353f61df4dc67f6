"""What the agents are asked in this task: as little as a role can be recognised by."""

from __future__ import annotations

from marsrl_verl.algos.rema.prompts import DialoguePrompts
from marsrl_verl.algos.rema.single_turn.prompts import PlanPrompts
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.rewards.extraction import boxed_answer
from studies.toy_tasks.rema_task.tokenizer import ACT, PLAN, SOLVE_ALONE


class TinyPlanPrompts(PlanPrompts, DialoguePrompts):
    """The same shapes as the full prompts, of a plan and of a dialogue: a system line where a plan is asked
    for, and the plan under the question where one is given. The first line is the problem, whatever a plan
    says after it."""

    # A definition after the other, then the answer: at a distance of four little is left.
    step_distance = 1
    max_steps = 7

    def plan(self, problem: Problem) -> tuple[Message, ...]:
        """A system line, then the problem."""
        return _with_system(PLAN, problem)

    def action(self, problem: Problem) -> tuple[Message, ...]:
        """Another one."""
        return _with_system(ACT, problem)

    def solution(self, problem: Problem, plan: str) -> tuple[Message, ...]:
        """The problem and, under it, the plan."""
        if not plan.strip():
            return self.direct(problem)
        return ({"role": "user", "content": f"{_line(problem)}\n{plan}"},)

    def meta_thinking(self, problem: Problem) -> tuple[Message, ...]:
        """A dialogue begins with a plan."""
        return self.plan(problem)

    def reasoning(self, problem: Problem, instruction: str) -> tuple[Message, ...]:
        """And with its solution."""
        return self.solution(problem, instruction)

    def direct(self, problem: Problem) -> tuple[Message, ...]:
        """The problem alone."""
        return ({"role": "user", "content": _line(problem)},)

    def planned(self, problem: Problem) -> tuple[Message, ...]:
        """A system line, then the problem."""
        return _with_system(SOLVE_ALONE, problem)

    def has_answer(self, text: str) -> bool:
        r"""Whether there is a complete `\boxed{…}`."""
        return boxed_answer(text) is not None


def _with_system(word: str, problem: Problem) -> tuple[Message, ...]:
    return ({"role": "system", "content": word}, {"role": "user", "content": _line(problem)})


def _line(problem: Problem) -> str:
    return " ".join(problem.question.splitlines())
