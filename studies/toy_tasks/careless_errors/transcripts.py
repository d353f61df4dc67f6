"""Transcripts of the three roles, each of which works everything out and slips in some of the steps.

The formats are the tiny task's. A slip is a wrong result near the right one, with which the following steps
go on. The Verifier's judgement follows from its own lines, so its slips in right steps are false alarms.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.demo.problems import LARGEST_TOTAL, Chain, Step
from marsrl_verl.demo.prompts import TinyPrompts
from studies.tiny.transcripts import Solution, Transcript, as_problem, check, slip

BAD = " bad"
_PROMPTS = TinyPrompts()


@dataclass(frozen=True, slots=True)
class Slips:
    """How often a role slips, and what Verifier and Corrector are shown."""

    per_step: float = 0.12
    """Probability that the result of a step is wrong."""
    repeats: float = 0.4
    """Share of the Corrector's responses that repeat the solution."""
    empty_reports: float = 0.1
    """Share of reports that are a bare verdict."""


DEFAULT_SLIPS = Slips()


def draw_solution(chain: Chain, rng: random.Random, slips: Slips) -> Solution:
    """A solution step by step, right or not."""
    while True:
        total, steps = chain.terms[0], []
        for term in chain.terms[1:]:
            result = total + term
            if not 0 <= result <= LARGEST_TOTAL:
                break  # an earlier slip leads out of the task's numbers
            if rng.random() < slips.per_step:
                result = slip(result, rng)
            steps.append(Step(total, "+" if term >= 0 else "-", abs(term), result))
            total = result
        else:
            return Solution(tuple(steps), total)


def verification(solution: Solution, rng: random.Random, slips: Slips) -> list[str]:
    """The Verifier's lines, up to the first step whose result is not what it has worked out."""
    lines = []
    for claimed in solution.steps:
        signed = claimed.right if claimed.sign == "+" else -claimed.right
        result = claimed.left + signed
        if rng.random() < slips.per_step:
            result = slip(result, rng)
        lines.append(check(Step(claimed.left, claimed.sign, claimed.right, result), claimed.result))
        if result != claimed.result:
            break
    return lines


def draw_transcript(role: str, chain: Chain, rng: random.Random, slips: Slips = DEFAULT_SLIPS) -> Transcript:
    """A random transcript of one role for this problem.

    Raises:
        ValueError: it is none of the three roles.
    """
    problem, solution = as_problem(chain), draw_solution(chain, rng, slips)
    if role == SOLVER:
        return Transcript(_PROMPTS.solver(problem), str(solution))
    lines = verification(solution, rng, slips)
    found = bool(lines) and lines[-1].endswith(BAD)
    if role == VERIFIER:
        verdict = "Correctness: Wrong" if found else "Correctness: Correct"
        return Transcript(_PROMPTS.verifier(problem, str(solution)), "\n".join([*lines, verdict]))
    if role != CORRECTOR:
        raise ValueError(
            f"there are no transcripts of role {role!r}; known: {SOLVER}, {VERIFIER}, {CORRECTOR}"
        )
    while not found:  # a Corrector is asked where a Verifier found something
        solution = draw_solution(chain, rng, slips)
        lines = verification(solution, rng, slips)
        found = lines[-1].endswith(BAD)
    report = "Correctness: Wrong" if rng.random() < slips.empty_reports else "\n".join(lines)
    corrected = solution if rng.random() < slips.repeats else draw_solution(chain, rng, slips)
    return Transcript(_PROMPTS.corrector(problem, str(solution), report), str(corrected))
