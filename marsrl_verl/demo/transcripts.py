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
from marsrl_verl.demo.prompts import VERIFIER_SYSTEM, TinyPrompts

CHECKING_DRILL = "checking_drill"
"""Not a role: unrelated claims, each to be recomputed and found in the prompt."""
COMPARING_DRILL = "comparing_drill"
"""Not a role: pairs of numbers, to be judged equal or not."""
_WRONG_SOLUTIONS = 0.6
_FALSE_REPORTS = 0.25
_CHECKS = 6
_COMPARISONS = 16
_DRILL_LARGEST = 40
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


def _check(own: Step, claimed_result: int) -> str:
    """A step as the Verifier works it out, the claim beside it, and whether they agree."""
    return f"{own} vs {claimed_result}" + (" ok" if own.result == claimed_result else " bad")


def false_report(solution: Sequence[Step], rng: random.Random) -> list[str]:
    """What a Verifier writes that miscalculates at one step of a correct solution."""
    position = rng.randrange(len(solution))
    step = solution[position]
    own = Step(step.left, step.sign, step.right, abs(step.result + rng.choice(_SLIPS)))
    return [*(_check(earlier, earlier.result) for earlier in solution[:position]), _check(own, step.result)]


def check_lines(chain: Chain, solution: Sequence[Step]) -> tuple[list[str], bool]:
    """The Verifier's lines up to the first disagreement, and whether all steps agree."""
    lines = []
    for own, claimed in zip(chain.steps(), solution, strict=True):
        agrees = own.result == claimed.result
        lines.append(_check(own, claimed.result))
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


def checking_drill(rng: random.Random) -> Transcript:
    """Unrelated claims, half of them wrong, and a check of each."""
    claims, checks = [], []
    for _ in range(_CHECKS):
        left, right = rng.randint(0, _DRILL_LARGEST), rng.randint(1, 9)
        sign = "+" if rng.random() < 0.5 or left < right else "-"
        own = Step(left, sign, right, left + right if sign == "+" else left - right)
        wrong = rng.random() < 0.5
        claimed = abs(own.result + rng.choice(_SLIPS)) if wrong else own.result
        claims.append(str(Step(left, sign, right, claimed)))
        checks.append(_check(own, claimed))
    messages = (
        {"role": "system", "content": VERIFIER_SYSTEM},
        {"role": "user", "content": "\n".join(claims)},
    )
    return Transcript(messages, "\n".join(checks))


def comparing_drill(rng: random.Random) -> Transcript:
    """Pairs of numbers, half of them unequal, and whether they agree."""
    lines = []
    for _ in range(_COMPARISONS):
        own = claimed = rng.randint(0, _DRILL_LARGEST)
        if rng.random() < 0.5:
            claimed = abs(own + rng.choice(_SLIPS))
        lines.append(f"{own} vs {claimed}" + (" ok" if own == claimed else " bad"))
    return Transcript(({"role": "system", "content": VERIFIER_SYSTEM},), "\n".join(lines))


def _draw_correction(chain: Chain, rng: random.Random) -> Transcript:
    if rng.random() < _FALSE_REPORTS:
        solution = chain.steps()
        lines = false_report(solution, rng)
    else:
        solution = wrong_steps(chain, rng)
        lines, _ = check_lines(chain, solution)
    return corrector_transcript(chain, solution, "\n".join(lines))


def draw_transcript(kind: str, chain: Chain, rng: random.Random) -> Transcript:
    """A random transcript of one kind: one of the roles for this problem, or a drill."""
    if kind == SOLVER:
        return solver_transcript(chain)
    if kind == VERIFIER:
        return verifier_transcript(
            chain, wrong_steps(chain, rng) if rng.random() < _WRONG_SOLUTIONS else chain.steps()
        )
    if kind == CORRECTOR:
        return _draw_correction(chain, rng)
    if kind == CHECKING_DRILL:
        return checking_drill(rng)
    if kind == COMPARING_DRILL:
        return comparing_drill(rng)
    raise ValueError(f"there are no transcripts of kind {kind!r}")
