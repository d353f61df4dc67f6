"""Problems: the tiny task's chains, of four to seven terms. Held-out rows bring two solutions along, a right
and a wrong one, which Verifier and Corrector are judged on (`algos.marsrl.evaluation.frozen`)."""

from __future__ import annotations

import random
from typing import Any

from marsrl_verl.demo.problems import Chain, Difficulty, Split, generate
from marsrl_verl.demo.problems import rows as usual_rows
from studies.tiny import transcripts as tiny_transcripts
from studies.tiny.transcripts import Solution, check_lines, correct_solution, false_report
from studies.toy_tasks.careless_errors import transcripts
from studies.toy_tasks.careless_errors.transcripts import DEFAULT_SLIPS, draw_solution

DIFFICULTY = Difficulty(min_terms=4, max_terms=7)
SOURCES = tuple(str(module.__file__) for module in (tiny_transcripts, transcripts))
"""What the rows depend on beside this file and the usual task's (`marsrl_verl.demo.files`)."""


def wrong_solution(chain: Chain, rng: random.Random) -> Solution:
    """A solution as the Solver slips."""
    while (found := draw_solution(chain, rng, DEFAULT_SLIPS)).answer == chain.answer:
        pass
    return found


def frozen_pair(chain: Chain) -> list[dict[str, Any]]:
    """A right solution with a mistaken report and a wrong one with the true finding, the same each time."""
    rng = random.Random(f"frozen:{chain.expression}")
    right, wrong = correct_solution(chain), wrong_solution(chain, rng)
    reports = false_report(chain, right, rng), check_lines(chain, wrong)
    return [
        {"solution": str(solution), "correct": solution is right, "report": "\n".join(report)}
        for solution, report in zip((right, wrong), reports, strict=True)
    ]


def rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    """`count` problems of a split as rows."""
    found = usual_rows(split, count, seed, DIFFICULTY)
    if split is Split.HELD_OUT:
        for row, chain in zip(found, generate(split, count, seed, DIFFICULTY), strict=True):
            row["extra_info"]["frozen_solutions"] = frozen_pair(chain)
    return found
