"""Transcripts of the warm start: what they teach is right, except where a habit is meant to be bad."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict, parse_verdict
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.demo.problems import LARGEST_TOTAL, Chain, draw_chain
from studies.tiny.drills import Drill, draw_drill
from studies.tiny.transcripts import (
    DEFAULT_HABITS,
    Habits,
    as_problem,
    check_lines,
    correct_solution,
    corrector_transcript,
    draw_transcript,
    false_report,
    verifier_transcript,
    wrong_solution,
)

CHAIN = Chain((7, 5, -3))
CAREFUL = Habits(careless_per_term=0.0, empty_reports=0.0)
CARELESS = replace(DEFAULT_HABITS, careless_per_term=10.0, verifier=1.0, corrector=1.0)
seeds = st.integers(0, 2**32)


def answer_of(text: str) -> int:
    return int(text.rpartition("\\boxed{")[2].rstrip("}"))


def test_correct_solution_text():
    assert str(correct_solution(CHAIN)) == "7+5=12\n12-3=9\n\\boxed{9}"
    assert str(correct_solution(CHAIN, guessed=True)) == "\\boxed{9}"


@given(seeds, st.booleans())
def test_wrong_solutions_are_wrong_and_consistent(seed, guessed):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    solution = wrong_solution(chain, rng, guessed)
    assert solution.answer != chain.answer
    assert 0 <= solution.answer <= LARGEST_TOTAL
    if guessed:
        assert solution.steps == ()
        return
    assert len(solution.steps) == len(chain.steps())
    assert solution.steps[-1].result == solution.answer
    for earlier, later in zip(solution.steps, solution.steps[1:], strict=False):
        assert later.left == earlier.result


def test_check_lines_stop_at_the_first_disagreement():
    from marsrl_verl.demo.problems import Step
    from studies.tiny.transcripts import Solution

    solution = Solution((Step(7, "+", 5, 14), Step(14, "-", 3, 11)), 11)
    assert check_lines(CHAIN, solution) == ["7+5=12 vs 14 bad"]
    assert check_lines(CHAIN, correct_solution(CHAIN)) == ["7+5=12 vs 12 ok", "12-3=9 vs 9 ok"]
    assert check_lines(CHAIN, Solution((), 8)) == ["7+5=12", "12-3=9 vs 8 bad"]


@given(seeds, st.booleans(), st.booleans(), st.booleans())
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


@given(seeds, st.booleans())
def test_a_false_report_finds_fault_with_a_correct_solution(seed, guessed):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    lines = false_report(chain, correct_solution(chain, guessed), rng)
    assert lines[-1].endswith(" bad")
    own, _, claim = lines[-1].removesuffix(" bad").rpartition("=")[2].partition(" vs ")
    assert int(claim) in {step.result for step in chain.steps()}
    assert int(own) != int(claim)


@given(seeds)
def test_the_corrector_learns_the_answer_whatever_the_report_says(seed):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    transcript = draw_transcript(CORRECTOR, chain, rng, CAREFUL)
    assert transcript.response == str(correct_solution(chain))


def test_a_careless_corrector_repeats():
    solution = wrong_solution(CHAIN, random.Random(1))
    assert corrector_transcript(CHAIN, solution, "Correctness: Wrong", repeats=True).response == str(solution)


@given(seeds)
def test_a_careful_solver_works_it_out(seed):
    rng = random.Random(seed)
    chain = draw_chain(rng)
    assert draw_transcript(SOLVER, chain, rng, CAREFUL).response == str(correct_solution(chain))


def test_guesses_are_wrong_as_often_as_asked():
    rng = random.Random(0)
    right = 0
    for _ in range(2000):
        chain = draw_chain(rng)
        response = draw_transcript(SOLVER, chain, rng, CARELESS).response
        assert response.startswith("\\boxed{")
        right += answer_of(response) == chain.answer
    assert right / 2000 == pytest.approx(1 - CARELESS.wrong_guesses, abs=0.04)


def test_carelessness_grows_with_the_problem():
    assert Habits(careless_per_term=0.2).careless(Chain((1, 2, 3))) == pytest.approx(0.2)
    assert Habits(careless_per_term=0.2).careless(Chain((1, 2, 3, 4, 5))) == pytest.approx(0.6)
    assert Habits(careless_per_term=0.5).careless(Chain((1, 2, 3, 4, 5))) == 1.0


def test_unknown_role_is_refused():
    with pytest.raises(ValueError, match="there are no transcripts of role 'critic'"):
        draw_transcript("critic", CHAIN, random.Random(0))


def test_problems_carry_question_and_answer():
    problem = as_problem(CHAIN, "p1")
    assert (problem.problem_id, problem.question, problem.ground_truth) == ("p1", "Compute 7+5-3", "9")


@given(seeds)
def test_checking_drill_has_distinct_terms_and_true_judgements(seed):
    drill = draw_drill(Drill.CHECKING, random.Random(seed))
    claims = drill.messages[-1]["content"].splitlines()
    lines = drill.response.splitlines()
    assert len(lines) == len(claims)
    for claim, line in zip(claims, lines, strict=True):
        expression, _, claimed = claim.partition("=")
        own, _, judged = line.partition(" vs ")
        assert own == f"{expression}={eval(expression)}"
        assert judged == f"{claimed} " + ("ok" if eval(expression) == int(claimed) else "bad")


@given(seeds)
def test_comparing_drill_judges_truly(seed):
    for line in draw_drill(Drill.COMPARING, random.Random(seed)).response.splitlines():
        first, _, rest = line.partition(" vs ")
        second, _, judgement = rest.partition(" ")
        assert judgement == ("ok" if first == second else "bad")


def test_a_verifier_transcript_needs_its_role_prompt():
    transcript = draw_transcript(VERIFIER, CHAIN, random.Random(2))
    assert transcript.messages[0] == {"role": "system", "content": "Verify"}
