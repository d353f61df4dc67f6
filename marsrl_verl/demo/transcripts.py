"""Supervised transcripts in the three roles, for the warm start.

The formats are the project's own protocol: Solver and Corrector end with `\\boxed{N}`, the Verifier
ends with a `Correctness:` line. A Verifier line restates a step, recomputes it, puts the solution's
claim beside its own result and says whether they agree: `7+5=12 vs 14 bad`; it stops at the first
disagreement.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from marsrl_verl.core.types import CORRECTOR, SOLVER, VERIFIER, Message, Problem
from marsrl_verl.demo.problems import DATA_SOURCE, LARGEST_TOTAL, Chain, Step
from marsrl_verl.demo.prompts import TinyPrompts

_SLIPS = (-10, -3, -2, -2, -1, -1, -1, 1, 1, 1, 2, 2, 3, 10)
_PROMPTS = TinyPrompts()


@dataclass(frozen=True, slots=True)
class Transcript:
    """One prompt with the response to learn."""

    messages: tuple[Message, ...]
    response: str


def as_problem(chain: Chain, problem_id: str = "") -> Problem:
    """The chain as the project's problem type."""
    question = chain.question
    return Problem(
        problem_id=problem_id or question,
        question=question,
        ground_truth=str(chain.answer),
        data_source=DATA_SOURCE,
        messages=({"role": "user", "content": question},),
    )


def solution_text(steps: Sequence[Step]) -> str:
    """A worked solution that ends with its boxed answer."""
    return "".join(f"{step}\n" for step in steps) + f"\\boxed{{{steps[-1].result}}}"


def wrong_steps(chain: Chain, rng: random.Random) -> list[Step]:
    """A worked solution with one mistake, which the later steps carry on.

    The mistakes are those that an unsure Solver makes: a result that is off, an operand or a sign that
    was misread.
    """
    correct = chain.steps()
    while True:
        position = rng.randrange(len(correct))
        total, steps = correct[0].left, []
        for index, step in enumerate(correct):
            sign, right, offset = step.sign, step.right, 0
            if index == position:
                kind = rng.random()
                if kind < 0.75:
                    offset = rng.choice(_SLIPS)
                elif kind < 0.9:
                    right = max(1, right + rng.choice((-1, 1)))
                else:
                    sign = "+" if sign == "-" else "-"
            result = total + (right if sign == "+" else -right) + offset
            steps.append(Step(total, sign, right, result))
            total = result
        if all(0 <= step.result <= LARGEST_TOTAL for step in steps) and total != chain.answer:
            return steps


def check_lines(chain: Chain, solution: Sequence[Step]) -> tuple[list[str], bool]:
    """The Verifier's lines up to the first disagreement, and whether all steps agree."""
    lines = []
    for own, claimed in zip(chain.steps(), solution, strict=True):
        agrees = own.result == claimed.result
        lines.append(f"{own} vs {claimed.result}" + (" ok" if agrees else " bad"))
        if not agrees:
            return lines, False
    return lines, True


def solver_transcript(chain: Chain) -> Transcript:
    """The problem, worked correctly."""
    return Transcript(_PROMPTS.solver(as_problem(chain)), solution_text(chain.steps()))


def verifier_transcript(chain: Chain, solution: Sequence[Step]) -> Transcript:
    """A judgement of a solution."""
    lines, correct = check_lines(chain, solution)
    verdict = "Correctness: Correct" if correct else "Correctness: Wrong"
    messages = _PROMPTS.verifier(as_problem(chain), solution_text(solution))
    return Transcript(messages, "\n".join([*lines, verdict]))


def corrector_transcript(chain: Chain, solution: Sequence[Step], report: str) -> Transcript:
    """A repaired solution: the correct one, whatever the report says."""
    messages = _PROMPTS.corrector(as_problem(chain), solution_text(solution), report)
    return Transcript(messages, solution_text(chain.steps()))


def draw_transcript(role: str, chain: Chain, rng: random.Random) -> Transcript:
    """A random transcript of one role for this problem."""
    if role == SOLVER:
        return solver_transcript(chain)
    if role == VERIFIER:
        return verifier_transcript(chain, wrong_steps(chain, rng) if rng.random() < 0.5 else chain.steps())
    if role == CORRECTOR:
        solution = wrong_steps(chain, rng)
        lines, _ = check_lines(chain, solution)
        return corrector_transcript(chain, solution, "\n".join(lines))
    raise ValueError(f"there are no transcripts of role {role!r}; known: {SOLVER}, {VERIFIER}, {CORRECTOR}")
