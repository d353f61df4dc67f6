"""Supervised transcripts of the two agents and of one agent alone, for the warm start.

Everybody does roughly what is right and slips now and then, at every step alike, so that there is no single
habit to be unlearnt: the meta-thinking agent loses its way on the trace back, the reasoning agent
miscalculates, and who has no plan begins at the wrong number about as often as at the right one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from marsrl_verl.algos.rema.prompts import FINISH
from marsrl_verl.core.request import Message, Problem
from studies.tiny.transcripts import Transcript
from studies.toy_tasks.rema_task.problems import DATA_SOURCE, Puzzle, worth
from studies.toy_tasks.rema_task.prompts import TinyPlanPrompts

_PROMPTS = TinyPlanPrompts()


@dataclass(frozen=True, slots=True)
class Habits:
    """How often which slip is made."""

    lost: float = 0.1
    """The trace goes on with another letter than the one that was used, for each letter."""
    stops_early: float = 0.06
    """The trace ends too soon, for each letter."""
    miscalculates: float = 0.08
    """A sum is off by a little, for each letter."""
    begins_wrong: float = 0.5
    """Without a plan, the chain is begun that does not lead to the goal."""
    solves_without_plan: float = 0.35
    """Of the reasoning agent's transcripts, those without a plan."""
    finishes: float = 0.75
    """After a solution the meta-thinking agent ends the dialogue; else it repeats its plan."""


DEFAULT_HABITS = Habits()


def as_problem(puzzle: Puzzle, problem_id: str = "") -> Problem:
    """The puzzle as the project's problem type."""
    return Problem(
        problem_id=problem_id or puzzle.question,
        question=puzzle.question,
        ground_truth=str(puzzle.answer),
        data_source=DATA_SOURCE,
        messages=({"role": "user", "content": puzzle.question},),
        extra_info={"level": puzzle.depth},
    )


def draw_plan(puzzle: Puzzle, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """The trace back from the goal, right or with a slip."""
    found = puzzle.goal
    while True:
        one = puzzle.definition(found[-1])
        if rng.random() < habits.stops_early and len(found) > 1:
            break
        following = one.base
        if rng.random() < habits.lost:
            others = [each.letter for each in puzzle.definitions if each.letter not in (*found, one.base)]
            following = rng.choice(others) if others else following
        if following is None or following in found:
            break
        found += following
    return found


def follow(puzzle: Puzzle, plan: str, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """The solution of who does what a plan says, letter by letter from its end, whether it makes sense or
    not."""
    first, *rest = reversed(plan)
    total, lines = worth(first), [f"{first}={worth(first)}"]
    for letter in rest:
        before, total = total, total + worth(letter)
        if rng.random() < habits.miscalculates:
            total = max(0, total + rng.choice(_SLIPS))
        lines.append(f"{letter}={before}+{worth(letter)}={total}")
    return ";".join([*lines, f"\\boxed{{{total}}}"])


_SLIPS = (-10, -3, -2, -1, -1, 1, 1, 2, 3, 10)


def guessed_order(puzzle: Puzzle, rng: random.Random, habits: Habits = DEFAULT_HABITS) -> str:
    """The order of who has no plan: now and then that of the other chain."""
    others = [end for end in puzzle.ends if end != puzzle.goal]
    wrong = rng.random() < habits.begins_wrong
    return puzzle.trace(rng.choice(others)) if wrong and others else puzzle.order


def lookup_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """An exercise: all definitions once more, in another order. The order is random, only what a letter
    stands on can be learnt."""
    found = list(puzzle.definitions)
    rng.shuffle(found)
    return Transcript(_PROMPTS.direct(as_problem(puzzle)), ";".join(map(str, found)))


def plan_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """The meta-thinking agent's plan."""
    return Transcript(_PROMPTS.plan(as_problem(puzzle)), draw_plan(puzzle, rng, habits))


def action_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """One of the three actions in JSON: a plan, the first two letters of one, or nothing."""
    action = rng.choice(("DECOMPOSE", "DECOMPOSE", "REWRITE", "EMPTY"))
    plan = {"DECOMPOSE": draw_plan(puzzle, rng, habits), "REWRITE": puzzle.order[:2], "EMPTY": ""}[action]
    text = json.dumps({"action": action, "output": plan}, separators=(",", ":"))
    return Transcript(_PROMPTS.action(as_problem(puzzle)), text)


def solution_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """The reasoning agent's solution, mostly after a plan."""
    if rng.random() < habits.solves_without_plan:
        order = guessed_order(puzzle, rng, habits)
        return Transcript(_PROMPTS.direct(as_problem(puzzle)), follow(puzzle, order, rng, habits))
    plan = draw_plan(puzzle, rng, habits)
    return Transcript(_PROMPTS.solution(as_problem(puzzle), plan), follow(puzzle, plan, rng, habits))


def planned_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """One agent's plan and solution in one answer."""
    plan = draw_plan(puzzle, rng, habits)
    text = f"{plan}\n{follow(puzzle, plan, rng, habits)}"
    return Transcript(_PROMPTS.planned(as_problem(puzzle)), text)


def meta_turn_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """The meta-thinking agent after a solution: the end of the dialogue, or the plan again."""
    plan = draw_plan(puzzle, rng, habits)
    chat = _dialogue(_PROMPTS.plan(as_problem(puzzle)), plan, follow(puzzle, plan, rng, habits))
    ends = rng.random() < habits.finishes
    return Transcript(chat, FINISH if ends else draw_plan(puzzle, rng, habits))


def reasoning_turn_transcript(puzzle: Puzzle, rng: random.Random, habits: Habits) -> Transcript:
    """The reasoning agent in a later turn: its answer when it is told that this is the end, else a new
    solution."""
    plan = draw_plan(puzzle, rng, habits)
    solution = follow(puzzle, plan, rng, habits)
    ends = rng.random() < habits.finishes
    next_plan = draw_plan(puzzle, rng, habits)
    chat = _dialogue(_PROMPTS.solution(as_problem(puzzle), plan), solution, FINISH if ends else next_plan)
    answer = solution.rpartition(";")[2]
    return Transcript(chat, answer if ends else follow(puzzle, next_plan, rng, habits))


def _dialogue(begun: tuple[Message, ...], own: str, other: str) -> tuple[Message, ...]:
    return (*begun, {"role": "assistant", "content": own}, {"role": "user", "content": other})


Draw = Callable[[Puzzle, random.Random, Habits], Transcript]
KINDS: dict[str, Draw] = {
    "lookup": lookup_transcript,
    "plan": plan_transcript,
    "solution": solution_transcript,
    "planned": planned_transcript,
    "action": action_transcript,
    "meta_turn": meta_turn_transcript,
    "reasoning_turn": reasoning_turn_transcript,
}
"""Every kind of transcript."""
