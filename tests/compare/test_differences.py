"""The table of differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from marsrl_verl.algos.marsrl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.compare.curves import RunCurve
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.results import Finished, Measured
from marsrl_verl.compare.tables import differences_table as table_of
from marsrl_verl.compare.tables import fewest_cases
from marsrl_verl.evaluation.estimators import FEW


def differences_table(some: list[Finished]) -> str:
    return table_of(some, EVALUATION_METRICS)


def one_run(method: str, seed: int, metric: str, value: float | None, cases: int | None) -> Finished:
    measured = {f"after/{metric}": Measured(value, cases)}
    return Finished(Run(method, seed, (), Path()), measured, 1, 0, 0, 0.0, 40, {}, RunCurve(""))


def runs(values: dict[str, list[float | None]], metric: str = "solver_accuracy", cases=FEW) -> list[Finished]:
    return [
        one_run(method, seed, metric, value, cases)
        for method, found in values.items()
        for seed, value in enumerate(found, 1)
    ]


def line(table: str, label: str) -> str:
    [found] = [one for one in table.splitlines() if one.startswith(f"| {label} |")]
    return found


def test_differences_by_hand():
    # 2, 3 and 4 points: s = 1, half width 4.30265 / sqrt(3) = 2.484.
    table = differences_table(runs({"a": [0.5, 0.7, 0.9], "b": [0.52, 0.73, 0.94]}))
    assert table.splitlines()[0] == "| less a | b |"
    assert line(table, "Solver accuracy") == "| Solver accuracy | **+3.0 [+0.5, +5.5]** |"
    assert line(table, "System accuracy") == "| System accuracy | – |"


def test_of_runs_that_were_evaluated_greedily_alone():
    """Their lines say so; where runs were sampled as well, the table is about these."""
    values = {"a": [0.5, 0.7, 0.9], "b": [0.52, 0.73, 0.94]}
    alone = runs(values, "solver_accuracy_greedy")
    found = differences_table(alone)
    assert line(found, "Solver accuracy, greedy").endswith("| **+3.0 [+0.5, +5.5]** |")
    assert line(found, "System accuracy") == "| System accuracy | – |"
    both = differences_table([*runs({"a": [0.5, 0.5], "b": [0.6, 0.7]}), *alone])
    assert "+15.0" in line(both, "Solver accuracy") and "greedy" not in both


def test_the_intervals_may_overlap_and_the_difference_be_clear():
    values = {"a": [0.90, 0.80, 0.70], "b": [0.95, 0.86, 0.75], "c": [0.95, 0.80, 0.65]}
    found = line(differences_table(runs(values)), "Solver accuracy")
    assert "| **+5.3 [+3.9, +6.8]** | +0.0 [-12.4, +12.4] |" in found


@pytest.mark.parametrize(("seeds", "p"), [(5, ""), (6, ", p 0.031"), (16, ", p 3.1e-05"), (17, "")])
def test_p_stands_where_it_can_be_small(seeds, p):
    """All signs alike: p is 2 / 2^seeds, 0.0625 for five, 0.031 for six."""
    one = runs({"a": [0.5] * seeds, "b": [0.6 + 0.01 * (seed % 2) for seed in range(seeds)]})
    assert line(differences_table(one), "Solver accuracy").partition("**" + p + " |")[1]


@pytest.mark.parametrize(("cases", "bold"), [(FEW - 1, False), (FEW, True), (None, False), (0, False)])
@pytest.mark.parametrize("metric", ["system_accuracy", "solver_accuracy"])
def test_figures_of_few_or_unknown_cases_are_not_marked(metric, cases, bold):
    many, some = runs({"a": [0.1, 0.2]}, metric), runs({"b": [0.5, 0.6]}, metric, cases)
    table = differences_table(many + some)
    assert ("**+40.0 [+40.0, +40.0]**" in line(table, EVALUATION_METRICS[metric].label)) == bold


def test_seeds_without_a_partner_do_not_count():
    many, few = runs({"a": [0.1, 0.2], "b": [0.5, 0.6]}), one_run("b", 3, "solver_accuracy", 0.9, 1)
    assert differences_table([*many, few]) == differences_table(many)


@pytest.mark.parametrize(("metric", "info"), EVALUATION_METRICS.items())
def test_a_metric_is_marked_only_where_a_run_judges_it(metric, info):
    """The Verifier's accuracy, recall and precision and the Corrector's rates follow the errors that each
    method's Solver leaves."""
    one = runs({"a": [0.1, 0.2], "b": [0.5, 0.6]}, metric, 1000)
    assert ("**" in line(differences_table(one), info.label)) == (not info.follows_errors)


def test_the_fewest_cases_of_a_method():
    one = [*runs({"a": [0.1]}, cases=40), *runs({"a": [0.1]}, cases=12), *runs({"a": [None]}, cases=0)]
    assert fewest_cases(one, "after/solver_accuracy") == 12
    assert fewest_cases(one, "after/system_accuracy") is None
