"""The tables of docs/comparison.md are those of the records in docs/results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_training import write_run

from benchmarks.published_comparison import Published, described, read_record, record_of, text_of
from marsrl_verl.compare.differences import differences_table
from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.results import Row, read_finished
from marsrl_verl.compare.suite import TOKENS, Budget, Suite, load_suite
from marsrl_verl.compare.tables import grid_table, outcomes_of, verdict_table

DOCS = Path(__file__).parents[2] / "docs"
RECORDS = {
    path.stem.removeprefix("comparison_"): content
    for path in sorted((DOCS / "results").glob("comparison_*.json"))
    if isinstance(content := json.loads(path.read_text()), dict)
}


@pytest.mark.parametrize("name", RECORDS)
def test_published_tables_are_those_of_the_records(name):
    suite, record = load_suite(name), read_record(RECORDS[name])
    page = (DOCS / "comparison.md").read_text()
    outcomes = outcomes_of(suite, record.rows, record.curves)
    if suite.judged:
        assert verdict_table(suite, outcomes, record.metrics) in page
    if suite.grid is None:
        assert differences_table(record.rows, record.metrics) in page
    else:
        assert grid_table(suite, suite.grid, record.seeds, outcomes, record.metrics) in page


def test_descriptions_without_a_verdict_are_those_of_the_record():
    text = described(load_suite("rema"), read_record(RECORDS["rema"]), "mrp_rl")
    assert text in (DOCS / "comparison.md").read_text()


def test_a_description_is_the_mean_difference_of_equal_seeds():
    after = {"one": (0.5, 0.6, 0.7), "two": (0.6, 0.8, 0.7)}
    rows = [
        Row(method, seed, "after/system_accuracy", value, 0, 0, 0.0, 40)
        for method, values in after.items()
        for seed, value in enumerate(values, 1)
    ]
    suite = replace(SUITE, primary=("system_accuracy",))
    # 10, 20, 0: mean 10, standard error 10 / sqrt(3), 4.303 of them.
    lines = described(suite, Published(rows, [], {}, 3), "one").splitlines()
    assert lines == ["| less one | system_accuracy |", "|---|---:|", "| two | +10.0 [-14.8, +34.8] |"]


@pytest.mark.parametrize("name", RECORDS)
def test_every_method_has_every_seed_and_a_whole_number_of_cases(name):
    suite, record = load_suite(name), read_record(RECORDS[name])
    runs = [(run["method"], run["seed"]) for run in RECORDS[name]["runs"]]
    seeds = range(suite.first_seed, suite.first_seed + record.seeds)
    assert sorted(runs) == sorted((method, seed) for method in suite.methods for seed in seeds)
    assert RECORDS[name]["budget"] == str(suite.budget), "the suite as it is makes these runs"
    counted = [row for row in record.rows if row.value is not None and row.cases]
    assert counted
    wrong = [row for row in counted if abs(row.value * row.cases - round(row.value * row.cases)) > 1e-6]
    assert wrong == []


SUITE = Suite(
    "s", "Two", Budget(TOKENS, 1000), 9, {"one": (), "two": ()},
    curve="role/solver/solver_accuracy", primary=("system_accuracy", "area"),
)  # fmt: skip


def finished(tmp_path, seeds=2):
    runs = plan_runs(SUITE, seeds, tmp_path)
    for run in runs:
        write_run(run.folder, 1000, 0.5 + 0.1 * run.seed)
    return [read_finished(run) for run in runs]


def test_a_record_has_the_rows_of_its_metrics_and_the_curves(tmp_path):
    runs = finished(tmp_path)
    content = json.loads(text_of(record_of(SUITE, 2, runs, "abc", ["solver_accuracy"])))
    assert (content["commit"], content["budget"]) == ("abc", "1,000 generated tokens")
    record = read_record(content)
    kept = ("system_accuracy", "solver_accuracy")
    expected = [row for one in runs for row in one.rows if row.metric.partition("/")[2] in kept]
    assert sorted(record.rows, key=str) == sorted(expected, key=str)
    assert [one["values"] for one in record.curves] == [[0.3, 0.6]] * 4
    assert (record.seeds, set(record.metrics)) == (2, set(kept))
    assert outcomes_of(SUITE, record.rows, record.curves)["two", "area"] == pytest.approx(
        # 0.3 until 500 tokens, then a straight line to 0.6 at 1,000.
        {1: 0.375, 2: 0.375}
    )


def test_records_of_unfinished_comparisons_and_unknown_metrics_are_refused(tmp_path):
    runs = finished(tmp_path)
    with pytest.raises(ValueError, match="3 runs are finished, expected 2 of each of 2 methods"):
        record_of(SUITE, 2, runs[:3], "abc")
    with pytest.raises(ValueError, match="no run measures nothing; they measure solver_accuracy"):
        record_of(SUITE, 2, runs, "abc", ["nothing"])
