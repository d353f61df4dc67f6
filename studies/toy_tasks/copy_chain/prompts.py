"""Prompts: the ledger alone, whose responses have a step for each line."""

from __future__ import annotations

from marsrl_verl.core.request import Problem
from marsrl_verl.demo.prompts import TinyPrompts
from studies.toy_tasks.copy_chain.problems import LINES, Ledger


class CopyChainPrompts(TinyPrompts):
    """The tiny task's conversation shapes; FCI counts from four steps on, as in the paper."""

    step_distance = 4
    # A line for each entry, then the answer.
    max_steps = LINES + 1


def as_problem(ledger: Ledger) -> Problem:
    """The problem that its row becomes."""
    return Problem(f"ledger:{ledger.question}", ledger.question, ledger.answer)
