"""Scores on benchmarks and their mean."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from evaluation_tools import system
from marsrl_script import ScriptedEngine
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.prompts import SOLVER, MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.evaluation.benchmark_scores import benchmark_columns, mean_of
from marsrl_verl.evaluation.estimators import Estimate, Observations, estimate
from marsrl_verl.evaluation.suite import EvaluationRecord, evaluate, first_problems
from marsrl_verl.reporting.tables import benchmark_markdown

PROBLEMS = [
    Problem(f"p{n}", f"question {n}", str(n), data_source="aime24" if n < 4 else "gsm8k") for n in range(10)
]
FIGURES = {"paper": {"aime24": 50.0, "gsm8k": 90.0}, "other": {"gsm8k": 80.0}}


def record(problems=PROBLEMS, **more) -> EvaluationRecord:
    """Of the first two of aime24's four problems, and of all of gsm8k's six, the answers are right."""
    right = {"p0", "p1", *(f"p{n}" for n in range(4, 10))}

    def script(item, k):
        one = item.problem
        return Reply(f"\\boxed{{{one.ground_truth if one.problem_id in right else 'no'}}}")

    evaluation, sampling = system(MathPrompts(), correction_rounds=0), {SOLVER: Sampling(500, 90)}
    settings = {"samples_per_problem": 2, "greedy": False, "samples_of": {"aime24": 4}, **more}
    names = {"aime24": "accuracy", "gsm8k": "accuracy"}
    engine = ScriptedEngine(script)
    return evaluate(
        engine,
        list(problems),
        evaluation,
        sampling,
        tag="alone",
        step=0,
        benchmarks=names,
        published=FIGURES,
        **settings,
    ).record


def test_each_benchmark_has_its_number_of_answers():
    found = record()
    assert found.observations["solver_accuracy"].n == 4 * 4 + 6 * 2
    passes = {name: {one for one in items if "_pass_at_" in one} for name, items in found.derived_of.items()}
    assert {"solver_pass_at_2", "solver_pass_at_4"} <= passes["aime24"]
    assert passes["gsm8k"] == {"solver_pass_at_2"}
    assert (
        found.derived_of["aime24"]["solver_pass_at_4"].mean,
        found.derived_of["gsm8k"]["solver_pass_at_2"].mean,
    ) == (
        0.5,
        1.0,
    )
    assert EvaluationRecord.from_json(found.to_json()) == found


def test_the_table_has_the_mean_over_benchmarks_and_a_papers_figures():
    (column,) = benchmark_columns(record())
    assert {name: one.mean for name, one in column.scores.items()} == {"aime24": 0.5, "gsm8k": 1.0}
    assert column.mean.mean == 0.75 and column.mean.n == 28
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in benchmark_markdown(record()).splitlines()
    ]
    assert rows[0] == ["benchmark", "problems", "figure", "Solver accuracy", "pass@k", "*paper*", "*other*"]
    assert rows[2][:3] == ["aime24", "4", "accuracy"] and rows[2][3].startswith("50.0 % [")
    assert rows[2][4].startswith("50.0 % [") and rows[2][4].endswith("k = 4")
    assert rows[3][4].startswith("100.0 % [") and rows[3][4].endswith("k = 2")
    assert rows[2][5:] == ["*50.0 %*", "–"] and rows[3][5:] == ["*90.0 %*", "*80.0 %*"]
    assert rows[4][0] == "**mean**" and rows[4][3].startswith("75.0 % [")
    assert rows[4][4:] == ["", "*70.0 %*", "–"]


def test_of_questions_f1_counts():
    found = record()
    f1 = Observations.of((0.25, one.problem_id) for one in PROBLEMS if one.data_source == "aime24")
    words = replace(
        found,
        observations={**found.observations, "solver_f1": f1},
        benchmarks={"aime24": "f1", "gsm8k": "accuracy"},
    )
    (column,) = benchmark_columns(words)
    assert column.scores["aime24"].mean == 0.25 and column.scores["gsm8k"].mean == 1.0


def test_the_interval_of_a_mean_by_hand():
    found = mean_of([Estimate(0.5, 0.2, 0.9, 10), Estimate(0.7, 0.3, 0.8, 20)])
    assert found.mean == pytest.approx(0.6) and found.n == 30
    assert found.low == pytest.approx(0.6 - math.sqrt(0.3**2 + 0.4**2) / 2)
    assert found.high == pytest.approx(0.6 + math.sqrt(0.4**2 + 0.1**2) / 2)
    assert mean_of([Estimate(None, None, None, 0), Estimate(0.5, 0.4, 0.6, 9)]).mean is None
    one = estimate(Observations.of([(True, "a"), (False, "b")]))
    assert (mean_of([one]).low, mean_of([one]).high) == pytest.approx((one.low, one.high))


def test_the_first_problems_of_each_benchmark():
    assert [one.problem_id for one in first_problems(PROBLEMS, 2, each=True)] == ["p0", "p1", "p4", "p5"]
    assert [one.problem_id for one in first_problems(PROBLEMS, 2, each=False)] == ["p0", "p1"]
    assert first_problems(PROBLEMS, None, each=True) == PROBLEMS


def test_a_score_over_categories_is_the_mean_of_these():
    subsets = ["talk", "sums", "sums", "code"]  # the first two answers are right
    problems = [replace(one, extra_info={"subset": subsets[n]}) for n, one in enumerate(PROBLEMS[:4])]
    categories = {"aime24": {"Chat": ["talk"], "Reasoning/math": ["sums"], "Reasoning/code": ["code"]}}
    found = record(problems=[*problems, *PROBLEMS[4:]], categories=categories)
    assert found.categories["aime24"]["Reasoning/math"] == ["p1", "p2"]
    (column,) = benchmark_columns(found)
    shares = {name: one.mean for name, one in column.categories["aime24"].items()}
    assert shares == {"Chat": 1.0, "Reasoning": 0.25}  # the mean of 1/2 and 0
    assert column.scores["aime24"].mean == 0.625 and column.mean.mean == (0.625 + 1) / 2
    lines = benchmark_markdown(found).splitlines()
    assert lines[3].startswith("| aime24: Chat | 4 |  | 100.0 % [") and "| 25.0 % [" in lines[4]
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert EvaluationRecord.from_json(found.to_json()) == found
    few = record(problems=[*problems[:1], *PROBLEMS[4:]], categories=categories)
    assert benchmark_columns(few)[0].scores["aime24"].mean is None, "a category without a pair"
