"""The result of a run that is one evaluation."""

from __future__ import annotations

import json

import pytest

from marsrl_verl.algos.marsrl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.evaluation.estimators import Observations
from marsrl_verl.evaluation.runs import Runs
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.evaluation.suite import ALONE, EvaluationRecord, EvaluationResult
from marsrl_verl.reporting.report import finish_evaluation
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


def test_the_table_has_a_line_for_each_measured_metric(record):
    lines = evaluation_markdown(record).splitlines()
    assert lines[2] == "| **temperature 0.6** | | |"
    assert lines[3].startswith("| Solver accuracy | 40.0 % [") and lines[3].endswith("| 50 |")
    assert "| Corrector fix rate | – | 0 |" in lines
    assert "| **greedy** | | |" in lines
    assert sum("Solver accuracy" in line for line in lines) == 2
