"""Supervised transcripts in the three roles, for the warm start.

The formats are the project's own protocol: Solver and Corrector end with `\\boxed{N}`, the Verifier
with a `Correctness:` line. Each role knows a careful way and has a careless habit, the more often the
longer the problem, so that there is something to unlearn:

- Solver: works step by step, or writes down a guess;
- Verifier: works the problem out beside the solution (`7+5=12 vs 14 bad`, up to the first
  disagreement), or gives a verdict at once;
- Corrector: rewrites the solution, or repeats it.

Guesses are often wrong, careless verdicts are labelled with the truth but unreliable, because so small
a network can hardly do several sums in its head.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.core.request import Message, Problem
from marsrl_verl.demo.problems import DATA_SOURCE, LARGEST_TOTAL, Chain, Step
from marsrl_verl.demo.prompts import TinyPrompts

_SLIPS = (-10, -3, -2, -2, -1, -1, -1, 1, 1, 1, 2, 2, 3, 10)
_PROMPTS = TinyPrompts()


@dataclass(frozen=True, slots=True)
class Habits:
    """How often the careless way is taken and what the judged solutions are like."""

    careless_per_term: float = 0.27
    """Probability of the Solver's guess per term beyond the second: 0.27 for 3 terms, 0.81 for 5."""
    wrong_guesses: float = 0.45
    """Share of wrong ones among the Solver's guesses."""
    verifier: float = 0.7
    """The Verifier's share of that probability."""
    corrector: float = 0.8
    """The Corrector's share of that probability."""
    guessed_solutions: float = 0.4
    """Share of guesses among the solutions that Verifier and Corrector are shown."""
    wrong_solutions: float = 0.6
    """Share of wrong ones among the solutions that the Verifier is shown."""
    false_reports: float = 0.2
    """Share of correct solutions, with a mistaken report, among those that the Corrector is shown."""
    empty_reports: float = 0.2
    """Share of reports that are a bare verdict."""

    def careless(self, chain: Chain) -> float:
        """Probability of a guess by the Solver."""
        return min(1.0, self.careless_per_term * (len(chain.terms) - 2))


DEFAULT_HABITS = Habits()


@dataclass(frozen=True, slots=True)
class Transcript:
    """One prompt with the response to learn."""

    messages: tuple[Message, ...]
    response: str


@dataclass(frozen=True, slots=True)
class Solution:
    """What a Solver may write: the steps, none if it is a guess, and the answer."""

    steps: tuple[Step, ...]
    answer: int

    def __str__(self) -> str:
        return "".join(f"{step}\n" for step in self.steps) + f"\\boxed{{{self.answer}}}"


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


def slip(result: int, rng: random.Random) -> int:
    """A wrong result near the right one."""
    return rng.choice([result + by for by in _SLIPS if 0 <= result + by <= LARGEST_TOTAL])


def correct_solution(chain: Chain, guessed: bool = False) -> Solution:
    """The right answer, worked out or not."""
    return Solution(() if guessed else tuple(chain.steps()), chain.answer)


def wrong_solution(chain: Chain, rng: random.Random, guessed: bool = False) -> Solution:
    """A wrong answer: guessed, or worked out with one mistake that the later steps carry on.

    The mistakes are those that an unsure Solver makes: a result that is off, an operand or a sign that
    was misread.
    """
    if guessed:
        return Solution((), slip(chain.answer, rng))
    while True:
        steps = _mistaken_steps(chain, rng)
        in_range = all(0 <= step.result <= LARGEST_TOTAL for step in steps)
        if in_range and steps[-1].result != chain.answer:
            return Solution(tuple(steps), steps[-1].result)


def _mistaken_steps(chain: Chain, rng: random.Random) -> list[Step]:
    correct = chain.steps()
    position = rng.randrange(len(correct))
    total, steps = correct[0].left, []
    for index, step in enumerate(correct):
        sign, right = step.sign, step.right
        slips = False
        if index == position:
            kind = rng.random()
            if kind < 0.75:
                slips = True
            elif kind < 0.9:
                right = max(1, right + rng.choice((-1, 1)))
            else:
                sign = "+" if sign == "-" else "-"
        result = total + (right if sign == "+" else -right)
        if slips:
            result = slip(result, rng)
        steps.append(Step(total, sign, right, result))
        total = result
    return steps


def check(own: Step, claim: int) -> str:
    """A step as the Verifier works it out, the claim beside it, and whether they agree."""
    return f"{own} vs {claim}" + (" ok" if own.result == claim else " bad")


def check_lines(chain: Chain, solution: Solution) -> list[str]:
    """A careful Verifier's lines, up to the first disagreement.

    A guess makes one claim only, its answer: the steps before it are worked out without comparison.
    """
    own = chain.steps()
    if not solution.steps:
        return [*map(str, own[:-1]), check(own[-1], solution.answer)]
    lines = []
    for step, claimed in zip(own, solution.steps, strict=True):
        lines.append(check(step, claimed.result))
        if step.result != claimed.result:
            break
    return lines


def false_report(chain: Chain, solution: Solution, rng: random.Random) -> list[str]:
    """What a careful Verifier writes that miscalculates one step of a correct solution."""
    own = chain.steps()
    position = rng.randrange(len(own)) if solution.steps else len(own) - 1
    step = own[position]
    mistaken = Step(step.left, step.sign, step.right, slip(step.result, rng))
    before = own[:position]
    shown = (
        [check(earlier, earlier.result) for earlier in before] if solution.steps else list(map(str, before))
    )
    return [*shown, check(mistaken, step.result)]


def solver_transcript(chain: Chain, rng: random.Random, habits: Habits) -> Transcript:
    """The problem, worked out or guessed."""
    solution = correct_solution(chain)
    if rng.random() < habits.careless(chain):
        wrong = rng.random() < habits.wrong_guesses
        solution = (
            wrong_solution(chain, rng, guessed=True) if wrong else correct_solution(chain, guessed=True)
        )
    return Transcript(_PROMPTS.solver(as_problem(chain)), str(solution))


def verifier_transcript(chain: Chain, solution: Solution, careful: bool = True) -> Transcript:
    """A true judgement of a solution."""
    lines = check_lines(chain, solution) if careful else []
    verdict = "Correctness: Correct" if solution.answer == chain.answer else "Correctness: Wrong"
    return Transcript(_PROMPTS.verifier(as_problem(chain), str(solution)), "\n".join([*lines, verdict]))


def corrector_transcript(chain: Chain, solution: Solution, report: str, repeats: bool = False) -> Transcript:
    """The solution rewritten correctly, whatever the report says, or merely repeated."""
    response = solution if repeats else correct_solution(chain)
    return Transcript(_PROMPTS.corrector(as_problem(chain), str(solution), report), str(response))


def _draw_judgement(chain: Chain, rng: random.Random, habits: Habits) -> Transcript:
    guessed = rng.random() < habits.guessed_solutions
    wrong = rng.random() < habits.wrong_solutions
    careful = rng.random() >= habits.verifier * habits.careless(chain)
    solution = wrong_solution(chain, rng, guessed) if wrong else correct_solution(chain, guessed)
    return verifier_transcript(chain, solution, careful)


def _draw_correction(chain: Chain, rng: random.Random, habits: Habits) -> Transcript:
    guessed = rng.random() < habits.guessed_solutions
    if rng.random() < habits.false_reports:
        solution = correct_solution(chain, guessed)
        lines = false_report(chain, solution, rng)
    else:
        solution = wrong_solution(chain, rng, guessed)
        lines = check_lines(chain, solution)
    report = "\n".join(lines) if rng.random() >= habits.empty_reports else "Correctness: Wrong"
    repeats = rng.random() < habits.corrector * habits.careless(chain)
    return corrector_transcript(chain, solution, report, repeats)


def draw_transcript(
    role: str, chain: Chain, rng: random.Random, habits: Habits = DEFAULT_HABITS
) -> Transcript:
    """A random transcript of one role for this problem."""
    if role == SOLVER:
        return solver_transcript(chain, rng, habits)
    if role == VERIFIER:
        return _draw_judgement(chain, rng, habits)
    if role == CORRECTOR:
        return _draw_correction(chain, rng, habits)
    raise ValueError(f"there are no transcripts of role {role!r}; known: {SOLVER}, {VERIFIER}, {CORRECTOR}")
