"""The roles' prompts in the tiny task: as short as a role can be recognised by."""

from __future__ import annotations

from marsrl_verl.algos.marsrl.prompts import RolePrompts
from marsrl_verl.core.request import Message, Problem

VERIFIER_SYSTEM = "Verify"
CORRECTION_REQUEST = "Correct the solution:"


class TinyPrompts(RolePrompts):
    """The same conversation shapes as the full prompts (MarsRL, arXiv 2511.11373, §3.1), in a few tokens.

    Solver: the problem. Verifier: a system line, then problem and solution. Corrector: problem, solution as
    its own earlier turn, then the request with the bug report.
    """

    # A line for each of up to four operations, then the answer: at a distance of four nothing is left.
    step_distance = 1
    max_steps = 5

    def solver(self, problem: Problem) -> tuple[Message, ...]:
        """The problem alone."""
        return ({"role": "user", "content": problem.question},)

    def verifier(self, problem: Problem, solution: str) -> tuple[Message, ...]:
        """Problem and solution under a one-word system line; the first line is the problem, whatever a
        solution says after it."""
        question = " ".join(problem.question.splitlines())
        return (
            {"role": "system", "content": VERIFIER_SYSTEM},
            {"role": "user", "content": f"{question}\n{solution}"},
        )

    def corrector(self, problem: Problem, solution: str, report: str) -> tuple[Message, ...]:
        """Problem, the solution as an earlier answer, and the request with the bug report."""
        return (
            {"role": "user", "content": problem.question},
            {"role": "assistant", "content": solution},
            {"role": "user", "content": f"{CORRECTION_REQUEST}\n{report}"},
        )
