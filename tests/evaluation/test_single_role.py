from __future__ import annotations

import itertools
import json

import pytest
from evaluation_tools import trajectory
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import Reply, ScriptedEngine

from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import FinishReason, RewardResult
from marsrl_verl.evaluation.at_k import pass_at_k
from marsrl_verl.evaluation.estimators import Observations, estimate
from marsrl_verl.evaluation.runs import Call, Run, Runs
from marsrl_verl.evaluation.single_role import (
    SingleRole,
    majority_at_k,
    pass_at_k_estimates,
    word_observations,
)
from marsrl_verl.evaluation.suite import EvaluationRecord, evaluate
from marsrl_verl.reporting.tables import evaluation_markdown
from marsrl_verl.rewards.qa import QAGrader

SOLVER = "solver"


def calls(problem: str, answers: list[str | None], truth: str) -> list[Call]:
    messages = ({"role": "user", "content": "q"},)
    item = RolloutRequest(f"{problem}/solver/0", Problem(problem, "q", truth), "solver", SOLVER, messages, 1)
    return [
        Call(item, trajectory(f"{item.group_id}#{k}", reward=float(answer == truth), answer=answer))
        for k, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "solved"),
    [
        (["7", "5", "7"], True),
        (["5", "7", "5"], False),
        (["7", "5"], True),  # equally frequent: the earliest
        (["5", "7"], False),
        ([None, None, "7"], True),  # no answer is no vote
        ([None, None], False),
    ],
)
def test_the_most_frequent_answer_counts(answers, solved):
    found = majority_at_k(SOLVER, calls("p", answers, "7"))
    assert (found.outcomes, found.problems) == ((solved,), ("p",))


def test_problems_are_counted_once_each():
    found = majority_at_k(SOLVER, [*calls("a", ["1", "1"], "1"), *calls("b", ["2", "3"], "3")])
    assert found == Observations((True, False), ("a", "b"))


def test_one_correct_answer_among_all_passes():
    answers = Observations((False, True, False, False), ("a", "a", "b", "b"))
    assert pass_at_k_estimates(SOLVER, answers) == {
        "solver_pass_at_2": estimate(Observations((True, False), ("a", "b")))
    }


def word_run(problem: str, ability: str = "", usable: bool = True, **info) -> Run:
    """A run with what a grader told of its answer."""
    run = Run(Problem(problem, "q", "t", ability=ability), 0)
    one = trajectory(f"{problem}#0", finish=FinishReason.STOP if usable else FinishReason.LENGTH)
    one.reward = RewardResult(info.get("f1", 0.0), info)
    run.calls = [Call(calls(problem, ["1"], "1")[0].request, one)]
    run.answer = one if usable else None
    return run


def words(*runs: Run) -> dict[str, Observations]:
    return word_observations(SOLVER, Runs("t", list(runs)))


RIGHT = {"answer": "Ada Lovelace", "f1": 1.0, "exact_match": True}
HALF = {"answer": "Ada", "f1": 2 / 3, "exact_match": False}


def test_f1_is_a_mean_and_no_threshold():
    found = words(word_run("a", **HALF), word_run("b", **RIGHT), word_run("c"))
    assert found["solver_f1"] == Observations((2 / 3, 1.0, False), ("a", "b", "c"))
    assert found["solver_f1"].mean == pytest.approx((2 / 3 + 1) / 3)
    assert found["solver_exact_match"].mean == pytest.approx(1 / 3)


def test_an_answer_that_was_cut_off_counts_nothing():
    assert words(word_run("a", usable=False, **RIGHT), word_run("b", **HALF))["solver_f1"].mean == 1 / 3


def test_problems_of_mathematics_have_no_f1():
    mathematics = word_run("m", answer="7")
    assert words(mathematics, word_run("n")) == {}
    mixed = (mathematics, word_run("a", **HALF))
    unknown = (word_run("u"), word_run("v", ability="qa"), word_run("w", ability="math"))
    assert words(*mixed, *unknown)["solver_f1"].problems == ("a", "v")
    several = words(*mixed, word_run("a", answer=None))
    assert several["solver_f1"].problems == ("a", "a"), "another answer to a question"


def test_where_no_answer_can_be_read_f1_is_0():
    cut = word_run("a", ability="QA", usable=False)
    found = words(cut, word_run("b", ability="qa"), word_run("m", ability="math"), word_run("u"))
    assert found["solver_f1"] == Observations((0, 0), ("a", "b")) == found["solver_exact_match"]
    assert words(word_run("m", ability="math"), word_run("u")) == {}


def test_the_table_has_f1_where_it_was_measured():
    grader = QAGrader()
    engine = ScriptedEngine(
        lambda request, k: Reply(r"\boxed{Ada}"),
        scorer=lambda request, one: grader.grade(one.final_text, [request.problem.ground_truth]),
    )
    record = evaluate(
        engine,
        [Problem("p", "Who?", "Ada Lovelace"), Problem("r", "And who?", "Ada")],
        SingleRole(SOLVER, ProblemPrompts()),
        {SOLVER: Sampling(500, 900)},
        tag="after",
        step=0,
    ).record
    for suffix in ("", "_greedy"):
        assert record.estimates[f"solver_f1{suffix}"].mean == pytest.approx((2 / 3 + 1) / 2)
        assert record.estimates[f"solver_exact_match{suffix}"].mean == 0.5
        assert record.estimates[f"solver_accuracy{suffix}"].mean == 1.0, "F1 above a half"
    assert EvaluationRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert "Solver F1" in evaluation_markdown(record)


@pytest.mark.parametrize(
    ("answers", "correct", "k", "expected"),
    [
        (3, 1, 2, 2 / 3),
        (4, 2, 2, 5 / 6),
        (4, 1, 3, 3 / 4),
        (32, 1, 16, 1 / 2),
        (3, 0, 2, 0.0),
        (3, 2, 2, 1.0),
    ],
)
def test_pass_at_k_by_hand(answers, correct, k, expected):
    assert pass_at_k(answers, correct, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("answers", "correct", "k"), [(3, 1, 0), (3, 1, 4), (3, 4, 1), (3, -1, 1), (0, 0, 1)]
)
def test_impossible_numbers_are_refused(answers, correct, k):
    with pytest.raises(ValueError, match=f"pass@{k} of {answers} answers, {correct} of them"):
        pass_at_k(answers, correct, k)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_correct_answer(numbers):
    answers, correct, k = numbers
    draws = list(itertools.combinations([True] * correct + [False] * (answers - correct), k))
    assert pass_at_k(answers, correct, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=12))
def test_more_tries_pass_more_and_one_try_is_the_accuracy(tries):
    answers = Observations.of((one, str(i)) for i, outcomes in enumerate(tries) for one in outcomes)
    found = pass_at_k_estimates(SOLVER, answers)
    found = {k: found[f"solver_pass_at_{k}"] for k in (2, 4, 6)}
    means = [answers.mean, *(one.mean for one in found.values())]
    assert all(low <= high + 1e-12 for low, high in itertools.pairwise(means))
    assert sum(pass_at_k(6, sum(one), 1) for one in tries) / len(tries) == pytest.approx(answers.mean)
    for one in found.values():
        assert 0 <= one.low <= one.mean <= one.high <= 1
        assert one.n == len(tries)


def test_a_single_try_has_no_pass_at_k():
    assert pass_at_k_estimates(SOLVER, Observations((True, False), ("a", "b"))) == {}
    assert pass_at_k_estimates(SOLVER, Observations((), ())) == {}


def test_several_answers_are_pictured_against_what_they_cost():
    role = SingleRole(SOLVER, ProblemPrompts())
    answers = [*calls("a", ["7", "7", "5", "7"], "7"), *calls("b", ["1", "2", "2", "3"], "1")]
    runs = [Run(one.request.problem, k, calls=[one]) for k, one in enumerate(answers)]
    [picture] = role.pictures(Runs("t", runs), 0.95)
    majority, oracle = picture.series
    assert [one.x for one in majority.points] == [1, 2, 4]  # tokens
    assert [one.value.mean for one in majority.points] == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    assert [one.value.mean for one in oracle.points] == pytest.approx([1 / 2, 3 / 4, 1])
    assert oracle.bound and not majority.bound
    for one in answers:
        one.trajectory.sequences.clear()  # an endpoint's
    [picture] = role.pictures(Runs("t", runs), 0.95)
    assert picture.title == "Right answers against calls" and picture.series[0].points[2].x == 4
    assert list(role.pictures(Runs("t", runs[:1]), 0.95)) == []
    assert list(role.pictures(Runs("t", []), 0.95)) == []
