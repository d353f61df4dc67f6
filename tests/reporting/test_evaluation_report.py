"""The result of a run that is one evaluation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from evaluation_tools import trajectory

from marsrl_verl.algos.marsrl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.estimators import Estimate, Observations
from marsrl_verl.evaluation.runs import Call, Run, Runs
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.evaluation.suite import ALONE, EvaluationRecord, EvaluationResult
from marsrl_verl.reporting.report import effort_markdown, finish_evaluation
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.reporting.summary import RunFacts
from marsrl_verl.reporting.tables import evaluation_markdown

FACTS = RunFacts("eval", "marsrl", "pipelined", 1, 200, 12.0, 0)


def observed(right: int, cases: int) -> Observations:
    return Observations(tuple(i < right for i in range(cases)), tuple(f"p{i}" for i in range(cases)))


@pytest.fixture
def record() -> EvaluationRecord:
    outcomes = {
        "solver_accuracy": observed(20, 50),
        "system_accuracy": observed(30, 50),
        "corrector_fix_rate": observed(0, 0),
        "solver_accuracy_greedy": observed(25, 50),
    }
    return EvaluationRecord(ALONE, 200, 0.95, 0.6, 50, 1, 3.0, 999, outcomes, metrics=EVALUATION_METRICS)


def test_summary_and_report(tmp_path, record):
    folder = RunFolder.create(tmp_path / "eval")
    nothing = Runs(ALONE, [])
    result = EvaluationResult(record, SingleRole("solver", ProblemPrompts()), nothing, None)
    finish_evaluation(folder, FACTS, result)
    summary = json.loads(folder.summary_path.read_text())
    assert summary["evaluation"]["solver_accuracy"]["mean"] == 0.4
    assert summary["evaluation"]["solver_accuracy_greedy"]["n"] == 50
    assert summary["run"]["evaluations"][0]["step"] == 200
    report = folder.report_path.read_text()
    assert report.startswith("# Evaluation: eval\n")
    assert "| system version |" not in report and "| training steps | 200 |" in report


def test_the_report_says_what_a_run_took_and_how_responses_ended(record):
    run = Run(Problem("p", "q", "t"), 0)
    request = RolloutRequest("g", run.problem, SOLVER, SOLVER, (), n=1)
    ends = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP)
    run.calls = [Call(request, trajectory(finish=finish)) for finish in ends]
    costs = {
        "calls": Estimate(3.0, 2.5, 3.5, 50),
        "accepted_frac": Estimate(0.5, 0.4, 0.6, 50),
        "calls_greedy": Estimate(1200.0, None, None, 1),
    }
    evaluation = SingleRole(SOLVER, ProblemPrompts())
    passes = Runs(ALONE, [run]), Runs(f"{ALONE}_greedy", [])
    lines = effort_markdown(EvaluationResult(replace(record, effort=costs), evaluation, *passes)).splitlines()
    assert lines[2:] == [
        "| **temperature 0.6** | |",
        "| calls | 3.0 [2.5, 3.5] |",
        "| accepted | 50.0 % [40.0, 60.0] |",
        "| solver: responses ended by | stop 2, length 1 |",
        "| **greedy** | |",
        "| calls | 1,200.0 |",
    ]


def test_the_table_has_a_line_for_each_measured_metric(record):
    lines = evaluation_markdown(record).splitlines()
    assert lines[2] == "| **temperature 0.6** | | |"
    assert lines[3].startswith("| Solver accuracy | 40.0 % [") and lines[3].endswith("| 50 |")
    assert "| Corrector fix rate | – | 0 |" in lines
    assert "| **greedy** | | |" in lines
    assert sum("Solver accuracy" in line for line in lines) == 2
