"""Transcripts of the Solver: lines copied without a mistake, results that are wrong now and then."""

from __future__ import annotations

import random

from marsrl_verl.demo.problems import LARGEST_TOTAL
from studies.tiny.transcripts import Transcript
from studies.toy_tasks.copy_chain.problems import ANY, LIKED, SMALLEST, Ledger
from studies.toy_tasks.copy_chain.prompts import CopyChainPrompts, as_problem

WRONG_RESULTS = 0.4
"""Share of wrong ones among the results of a computed line."""
_SLIPS = (-3, -2, -1, 1, 2, 3)
_PROMPTS = CopyChainPrompts()


def draw_transcript(ledger: Ledger, rng: random.Random, wrong: float = WRONG_RESULTS) -> Transcript:
    """A random response to a problem."""
    first = _slipped(ledger.results[0], rng, wrong)
    second = _slipped(first + ledger.terms[1], rng, wrong)
    liked = [rng.choice(LIKED) for _ in range(ledger.entries.count(ANY))]
    return Transcript(_PROMPTS.solver(as_problem(ledger)), ledger.response((first, second), liked))


def _slipped(result: int, rng: random.Random, wrong: float) -> int:
    """A result, or a wrong one near it, that is one of the task's."""
    near = [result + by for by in _SLIPS] if rng.random() < wrong else [result]
    possible = [one for one in near if SMALLEST <= one <= LARGEST_TOTAL]
    return rng.choice(possible or [min(max(result, SMALLEST), LARGEST_TOTAL)])
