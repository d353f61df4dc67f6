"""The prompts with which a problem begins in a single turn, and what the longest ones are made of."""

from __future__ import annotations

from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import Config, PlanForm, Process
from marsrl_verl.algos.rema.single_turn.prompts import PlanPrompts
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape
from marsrl_verl.core.request import Message, Problem

_SHORTEST_PLAN = "."


def opening_prompts(config: Config, prompts: PlanPrompts, problem: Problem) -> dict[str, tuple[Message, ...]]:
    """By role: what the one agent is asked; of two agents what the first is asked, and the second at least.

    The reasoning agent may be shown more of a problem than the meta-thinking agent, such as the answers to be
    judged. Where there is no room for any plan, no plan is to blame.
    """
    if config.process is Process.VRP:
        return {REASONING: prompts.direct(problem)}
    if config.process is Process.MRP:
        return {REASONING: prompts.planned(problem)}
    if config.plan_form is PlanForm.JSON:  # the action EMPTY has no instruction
        return {META_THINKING: prompts.action(problem), REASONING: prompts.solution(problem, "")}
    return {META_THINKING: prompts.plan(problem), REASONING: prompts.solution(problem, _SHORTEST_PLAN)}


def prompt_shapes(config: Config, prompts: PlanPrompts) -> tuple[PromptShape, ...]:
    """The reasoning agent is shown a plan, if there is another agent, and what else the rows have for it."""
    more = tuple(prompts.row_texts(NO_PROBLEM))
    opening = opening_prompts(config, prompts, NO_PROBLEM)
    if config.process is not Process.MAMRP:
        return (PromptShape(REASONING, opening[REASONING], row_texts=more),)
    # With an instruction also where plans are actions: those that have one are longer.
    solution = prompts.solution(NO_PROBLEM, _SHORTEST_PLAN)
    return (
        PromptShape(META_THINKING, opening[META_THINKING]),
        PromptShape(REASONING, solution, {"plan": (META_THINKING,)}, row_texts=more),
    )
