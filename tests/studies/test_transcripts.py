"""Transcripts of the warm start: what they teach is right, except where a habit is meant to be bad."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER
from marsrl_verl.algos.marsrl.verdict import Verdict, parse_verdict
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.problems import LARGEST_TOTAL, Chain, Step, draw_chain
from studies.tiny.curriculum import Drill, draw_drill
from studies.tiny.transcripts import (
    Habits,
    Solution,
    check_lines,
    correct_solution,
    draw_transcript,
    false_report,
    verifier_transcript,
    wrong_solution,
)

CHAIN = Chain((7, 5, -3))
CAREFUL = Habits(careless_per_term=0.0, empty_reports=0.0)
SEEDS = st.integers(0, 2**32)


def test_texts_by_hand():
    right, wrong = correct_solution(CHAIN), Solution((Step(7, "+", 5, 14), Step(14, "-", 3, 11)), 11)
    assert str(right) == "7+5=12\n12-3=9\n\\boxed{9}"
    assert str(correct_solution(CHAIN, guessed=True)) == "\\boxed{9}"
    assert check_lines(CHAIN, wrong) == ["7+5=12 vs 14 bad"]
    assert check_lines(CHAIN, right) == ["7+5=12 vs 12 ok", "12-3=9 vs 9 ok"]
    assert check_lines(CHAIN, Solution((), 8)) == ["7+5=12", "12-3=9 vs 8 bad"]


@given(SEEDS, st.booleans())
def test_wrong_solutions_are_wrong_and_consistent(seed, guessed):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    solution = wrong_solution(chain, rng, guessed)
    assert chain.answer != solution.answer and 0 <= solution.answer <= LARGEST_TOTAL
    assert len(solution.steps) == (0 if guessed else len(chain.steps()))
    results = [step.result for step in solution.steps]
    assert [step.left for step in solution.steps[1:]] == results[:-1]
    assert guessed or results[-1] == solution.answer


@given(SEEDS, st.booleans(), st.booleans(), st.booleans())
def test_verdicts_are_true_and_in_the_protocol(seed, wrong, guessed, careful):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    solution = wrong_solution(chain, rng, guessed) if wrong else correct_solution(chain, guessed)
    transcript = verifier_transcript(chain, solution, careful)
    expected = Verdict.WRONG if wrong else Verdict.CORRECT
    assert parse_verdict(transcript.response, FinishReason.STOP).verdict is expected
    assert str(solution) in transcript.messages[-1]["content"]
    if careful:
        judged = [line for line in transcript.response.splitlines() if " vs " in line]
        assert judged[-1].endswith(" bad" if wrong else " ok")


@given(SEEDS, st.booleans())
def test_a_false_report_finds_fault_with_a_correct_solution(seed, guessed):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    last = false_report(chain, correct_solution(chain, guessed), rng)[-1]
    own, _, claim = last.removesuffix(" bad").rpartition("=")[2].partition(" vs ")
    assert last.endswith(" bad") and int(claim) in {step.result for step in chain.steps()}
    assert int(own) != int(claim)


@given(SEEDS, st.sampled_from([SOLVER, CORRECTOR]))
def test_without_bad_habits_the_answer_is_worked_out_whatever_a_report_says(seed, role):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    assert draw_transcript(role, chain, rng, CAREFUL).response == str(correct_solution(chain))


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="there are no transcripts of role 'critic'"):
        draw_transcript("critic", CHAIN, random.Random(0))


@given(SEEDS)
def test_drills_judge_truly(seed):
    rng = random.Random(seed)
    drill = draw_drill(Drill.CHECKING, rng)
    for claim, line in zip(
        drill.messages[-1]["content"].splitlines(), drill.response.splitlines(), strict=True
    ):
        expression, _, claimed = claim.partition("=")
        judged = "ok" if eval(expression) == int(claimed) else "bad"
        assert line == f"{expression}={eval(expression)} vs {claimed} {judged}"
    for line in draw_drill(Drill.COMPARING, rng).response.splitlines():
        first, _, rest = line.partition(" vs ")
        second, _, judged = rest.partition(" ")
        assert judged == ("ok" if first == second else "bad")
