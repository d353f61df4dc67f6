"""Prompts for SmolLM2: few words, and worked examples as earlier turns, without which so small a model
answers in no form that can be read."""

from __future__ import annotations

from collections.abc import Sequence

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER, RolePrompts
from marsrl_verl.core.prompts import Chat, Example, Wordings, WorkedExamples
from marsrl_verl.core.request import Problem

SOLVER_SYSTEM = "Solve the problem step by step, one calculation on a line. Put the answer in \\boxed{}."
_VERDICTS = "Correctness: Correct or Correctness: Wrong"
VERIFIER_SYSTEM = f"Check the solution of a problem. Work it out anew, then write {_VERDICTS}."

_BUS = "A bus has 14 seats free. At a stop 5 people get on. How many seats are free now?"
_EGGS = "Kim has 3 nests with 4 eggs each. How many eggs does she have now?"
_BOOKS = "Rob has 9 books. He buys 7 more books. How many books does he have now?"
_SHOP = "A shop has 8 boxes with 5 pens each. How many pens does it have now?"

_BUS_SOLUTION = "5 people get on: 14 - 5 = 9\n\\boxed{9}"
_EGGS_SOLUTION = "3 nests with 4 eggs: 3 * 4 = 12\n\\boxed{12}"
_BOOKS_SOLUTION = "He buys 7 books: 9 + 7 = 16\n\\boxed{16}"
_BOOKS_SLIP = "He buys 7 books: 9 + 7 = 15\n\\boxed{15}"
_BUS_MISREAD = "5 people get on: 14 + 5 = 19\n\\boxed{19}"
_SHOP_SOLUTION = "8 boxes with 5 pens: 8 * 5 = 40\n\\boxed{40}"
_CORRECT, _WRONG = "Correctness: Correct", "Correctness: Wrong"


def report(line: str, said: int) -> str:
    """The text before a Verifier's verdict: the calculation as it should be, and the solution's answer."""
    return f"{line}\nThe solution says {said}."


_BUS_REPORT = report("5 people get on: 14 - 5 = 9", 19)
_EGGS_REPORT = report("3 nests with 4 eggs: 3 * 4 = 12", 12)
_BOOKS_REPORT = report("He buys 7 books: 9 + 7 = 16", 15)
_SHOP_REPORT = report("8 boxes with 5 pens: 8 * 5 = 40", 40)

EXAMPLES: dict[str, Sequence[Example]] = {
    SOLVER: [
        {"question": _BUS, "answer": _BUS_SOLUTION},
        {"question": _EGGS, "answer": _EGGS_SOLUTION},
        {"question": _BOOKS, "answer": _BOOKS_SOLUTION},
    ],
    VERIFIER: [
        {"question": _EGGS, "solution": _EGGS_SOLUTION, "answer": f"{_EGGS_REPORT}\n{_CORRECT}"},
        {"question": _BUS, "solution": _BUS_MISREAD, "answer": f"{_BUS_REPORT}\n{_WRONG}"},
        {"question": _SHOP, "solution": _SHOP_SOLUTION, "answer": f"{_SHOP_REPORT}\n{_CORRECT}"},
        {"question": _BOOKS, "solution": _BOOKS_SLIP, "answer": f"{_BOOKS_REPORT}\n{_WRONG}"},
    ],
    CORRECTOR: [
        {"question": _BUS, "solution": _BUS_MISREAD, "report": _BUS_REPORT, "answer": _BUS_SOLUTION},
        {"question": _BOOKS, "solution": _BOOKS_SLIP, "report": _BOOKS_REPORT, "answer": _BOOKS_SOLUTION},
    ],
}


class WordProblemPrompts(RolePrompts):
    """MarsRL's roles, and GRPO's one, with worked examples of one step.

    Args:
        examples: others by role, in place of these.
    """

    # What is to be calculated, where the examples say it, the calculation, the answer.
    step_distance = 1
    max_steps = 3

    def __init__(self, examples: dict[str, Sequence[Example]] | None = None) -> None:
        wordings: Wordings = {SOLVER: self._solver, VERIFIER: self._verifier, CORRECTOR: self._corrector}
        self._examples = WorkedExamples(wordings, {**EXAMPLES, **(examples or {})})

    def solver(self, problem: Problem) -> Chat:
        """The problem under a line on the form of an answer."""
        return self._examples.chat(SOLVER, problem)

    def verifier(self, problem: Problem, solution: str) -> Chat:
        """Problem and solution."""
        return self._examples.chat(VERIFIER, problem, solution=solution)

    def corrector(self, problem: Problem, solution: str, report: str) -> Chat:
        """The solution as an answer to the problem, then the report."""
        return self._examples.chat(CORRECTOR, problem, solution=solution, report=report)

    def _solver(self, problem: Problem) -> Chat:
        return _chat(SOLVER_SYSTEM, problem.question)

    def _verifier(self, problem: Problem, solution: str) -> Chat:
        question = " ".join(problem.question.splitlines())
        return _chat(VERIFIER_SYSTEM, f"{question}\n\nSolution:\n{solution}")

    def _corrector(self, problem: Problem, solution: str, report: str) -> Chat:
        return (
            *self._solver(problem),
            {"role": "assistant", "content": solution},
            {"role": "user", "content": f"That is wrong. Solve it again.\n{report}"},
        )


def _chat(system: str, user: str) -> Chat:
    return ({"role": "system", "content": system}, {"role": "user", "content": user})
