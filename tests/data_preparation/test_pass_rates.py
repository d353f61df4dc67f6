"""Which problems stay by pass rate, and a held-out part without a common problem."""

from __future__ import annotations

import random

import pytest

from marsrl_verl.core.request import Problem
from marsrl_verl.data.problems import SourceProblem, look_alike, problem_key
from marsrl_verl.data.rows import DataError
from marsrl_verl.data_preparation.grades import Grade, ProblemGrades
from marsrl_verl.data_preparation.selection import PassRates, hold_out, looking_alike, select


def source(question: str) -> SourceProblem:
    key = problem_key(question)
    return SourceProblem(key, Problem(key, question, "1"), "math", "", "file row 0")


def passed(key: str, right: int, answers: int = 8) -> ProblemGrades:
    return ProblemGrades(key, tuple(Grade(float(k < right)) for k in range(answers)))


def selected_rates(rates: PassRates, answers: int) -> list[int]:
    problems = [source(str(right)) for right in range(answers + 1)]
    grades = {problem.key: passed(problem.key, int(problem.question), answers) for problem in problems}
    return [int(problem.question) for problem in select(problems, grades, rates).kept]


@pytest.mark.parametrize(
    ("rates", "answers", "expected"),
    [
        (PassRates(), 8, range(8)),
        (PassRates(), 3, range(3)),
        (PassRates(0.125), 8, range(1, 8)),
        (PassRates(0.0, 1.0), 8, range(9)),
        (PassRates(0.25, 0.75), 8, range(2, 7)),
        (PassRates(0.26, 0.74), 8, range(3, 6)),
        (PassRates(0.0, 0.0), 8, [0]),
        (PassRates(1 / 3, 2 / 3), 3, [1, 2]),
    ],
)
def test_both_ends_are_kept_and_by_default_all_but_what_all_answers_solve(rates, answers, expected):
    assert selected_rates(rates, answers) == list(expected)


@pytest.mark.parametrize(("least", "most"), [(-0.1, None), (0.5, 0.4), (0.0, 1.1), (float("nan"), None)])
def test_impossible_rates_are_refused(least, most):
    with pytest.raises(DataError, match="are none"):
        PassRates(least, most)


def test_every_problem_is_counted_once():
    problems = [source(name) for name in ("easy", "hard", "good", "long", "refused", "unknown")]
    easy, hard, good, long, refused, _ = (problem.key for problem in problems)
    grades = {
        easy: passed(easy, 8),
        hard: passed(hard, 0),
        good: passed(good, 4),
        long: ProblemGrades(long, (Grade(0.0, finish="prompt_too_long"),) * 8),
        refused: ProblemGrades(refused, (Grade(0.0, finish="error"),) * 8),
    }
    selection = select(problems, grades, PassRates(least=0.125))
    assert [problem.question for problem in selection.kept] == ["good"]
    fates = ("too_easy", "too_hard", "kept", "prompt_too_long", "error", "unanswered")
    assert selection.counts == dict.fromkeys(fates, 1)


def test_a_cut_off_answer_is_a_wrong_one_and_an_ungraded_one_none():
    grades = ProblemGrades("k", (Grade(1.0), Grade(0.0, finish="length"), Grade(0.0, graded=False)))
    assert (grades.passes, grades.pass_rate, grades.skipped) == (1, 1 / 2, None)


# --- the held-out part --------------------------------------------------------------------------------

VARIANTS = ["Find {}.", "find {}", "Find ${}$!"]


def families(count: int) -> list[SourceProblem]:
    return [source(text.format(i)) for i in range(count) for text in VARIANTS[: 1 + i % 3]]


@pytest.mark.parametrize("seed", range(5))
def test_parts_share_no_problem_not_even_another_typesetting(seed):
    problems = families(60)
    train, val = hold_out(problems, 25, seed)
    assert len(val) == 25
    assert len(train) + len(val) == len(problems)
    assert not {look_alike(one.question) for one in train} & {look_alike(one.question) for one in val}
    assert train == [problem for problem in problems if problem in train]


def test_the_part_follows_from_the_seed_and_not_from_the_order():
    problems = families(60)
    shuffled = random.Random(1).sample(problems, len(problems))

    def held(some: list[SourceProblem], seed: int) -> set[str]:
        return {problem.key for problem in hold_out(some, 20, seed)[1]}

    assert held(problems, 1) == held(shuffled, 1)
    assert held(problems, 1) != held(problems, 2)


def test_none_is_held_out_unless_asked_and_never_are_all():
    problems = families(3)
    assert hold_out(problems, 0, 1) == (problems, [])
    with pytest.raises(DataError, match="none is left to train"):
        hold_out(problems, 6, 1)


def test_a_family_is_not_split_to_reach_a_number():
    problems = [source(text.format(1)) for text in VARIANTS]
    with pytest.raises(DataError, match="look alike") as caught:
        hold_out(problems, 2, 1)
    assert "--held-out 0" in caught.value.fix


def test_members_of_families_are_counted():
    assert looking_alike(families(6)) == 6
