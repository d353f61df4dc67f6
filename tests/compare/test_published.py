"""The verdicts of docs/results/comparison.md are those of the records in docs/results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from composing import TAKEN_AWAY
from fake_training import write_run

from benchmarks.published_comparison import described, published
from marsrl_verl.compare.curves import RunCurve
from marsrl_verl.compare.plan import Run, plan_runs
from marsrl_verl.compare.record import record_json, runs_of, text_of
from marsrl_verl.compare.results import Finished, Measured, metrics_of, read_finished
from marsrl_verl.compare.suite import TOKENS, Budget, Suite, load_suite
from marsrl_verl.compare.tables import outcomes_of, verdict_table
from marsrl_verl.evaluation.estimators import GREEDY_SUFFIX

DOCS = Path(__file__).parents[2] / "docs"
RECORDS = {
    path.stem.removeprefix("comparison_"): content
    for path in sorted((DOCS / "results").glob("comparison_*.json"))
    if isinstance(content := json.loads(path.read_text()), dict)
}


JUDGED = [name for name in RECORDS if not name.endswith("_rates")]
"""Records of comparisons; a search of learning rates gives no verdicts."""


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.with_presets("grpo")
def test_published_verdicts_are_those_of_the_records(name):
    suite, finished = load_suite(name), runs_of(path_of(name))
    page = (DOCS / "results" / "comparison.md").read_text()
    assert verdict_table(suite, outcomes_of(suite, finished), metrics_of(finished)) in page


def path_of(name: str) -> Path:
    return DOCS / "results" / f"comparison_{name}.json"


def test_descriptions_without_a_verdict_are_those_of_the_record():
    if TAKEN_AWAY:
        pytest.skip("its suite may be taken away")
    text = described(load_suite("rema"), runs_of(path_of("rema")), "mrp_rl")
    assert text in (DOCS / "results" / "comparison.md").read_text()


def test_a_description_is_the_mean_difference_of_equal_seeds(tmp_path):
    after = {"one": (0.5, 0.6, 0.7), "two": (0.6, 0.8, 0.7)}
    finished = [
        Finished(
            Run(method, seed, (), tmp_path),
            {"after/system_accuracy": Measured(value, 40)},
            1, 0, 0, 0.0, 40, {}, RunCurve(""),
        )
        for method, values in after.items()
        for seed, value in enumerate(values, 1)
    ]  # fmt: skip
    suite = replace(SUITE, primary=("system_accuracy",))
    # 10, 20, 0: mean 10, standard error 10 / sqrt(3), 4.303 of them.
    lines = described(suite, finished, "one").splitlines()
    assert lines == ["| less one | system_accuracy |", "|---|---:|", "| two | +10.0 [-14.8, +34.8] |"]


@pytest.mark.parametrize("name", RECORDS)
def test_every_method_has_every_seed_and_a_whole_number_of_cases(name):
    suite, finished = load_suite(name), runs_of(path_of(name))
    runs = {(one.run.method, one.run.seed) for one in finished}
    seeds = range(suite.first_seed, suite.first_seed + len({seed for _, seed in runs}))
    assert runs == {(method, seed) for method in suite.methods for seed in seeds}
    assert len(runs) == len(finished)
    assert RECORDS[name]["budget"] == str(suite.budget), "the suite as it is makes these runs"
    # What tables show is a share of cases; F1, which they don't, is none.
    shown = {name + end for name in metrics_of(finished) for end in ("", GREEDY_SUFFIX)}
    rows = [row for one in finished for name, row in one.measured.items() if name.partition("/")[2] in shown]
    counted = [row for row in rows if row.value is not None and row.cases]
    assert counted
    wrong = [row for row in counted if abs(row.value * row.cases - round(row.value * row.cases)) > 1e-6]
    assert wrong == []


WITHOUT_WORK = {"rema", "rema_ratio", "marsrl_rates"}


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_of_the_suites_as_they_are(name, tmp_path):
    """Where they say what their runs did: the earliest ones don't, and no new one may lack it."""
    assert all(("work" in run) == (name not in WITHOUT_WORK) for run in RECORDS[name]["runs"])
    known = {(run["method"], run["seed"]): run["work"] for run in RECORDS[name]["runs"] if "work" in run}
    planned = plan_runs(load_suite(name), max((seed for _, seed in known), default=0), tmp_path)
    assert known == {(run.method, run.seed): run.work for run in planned if (run.method, run.seed) in known}


SUITE = Suite(
    "s", "Two", Budget(TOKENS, 1000), 9, {"one": (), "two": ()},
    curve="role/solver/solver_accuracy", primary=("system_accuracy", "area"),
)  # fmt: skip


def finished(tmp_path, seeds=2):
    runs = plan_runs(SUITE, seeds, tmp_path)
    for run in runs:
        write_run(run.folder, 1000, 0.5 + 0.1 * run.seed)
    return [read_finished(run, SUITE) for run in runs]


def test_a_record_has_all_that_the_tables_need(tmp_path):
    runs = finished(tmp_path)
    path = tmp_path / "results.json"
    path.write_text(text_of(published(SUITE, record_json(SUITE, runs), "abc")))
    content = json.loads(path.read_text())
    assert (content["commit"], content["budget"]) == ("abc", "1,000 generated tokens")
    found = runs_of(path)
    assert found == [replace(one, run=Run(one.run.method, one.run.seed, (), tmp_path)) for one in runs]
    assert outcomes_of(SUITE, found)["two", "area"] == pytest.approx(
        # 0.3 until 500 tokens, then a straight line to 0.6 at 1,000.
        {1: 0.375, 2: 0.375}
    )


def test_records_of_unfinished_comparisons_are_refused(tmp_path):
    runs = finished(tmp_path)
    with pytest.raises(ValueError, match="runs are missing: two-seed2; finish the comparison first"):
        published(SUITE, record_json(SUITE, runs[:3]), "abc")
    with pytest.raises(ValueError, match="the runs took 1,000 generated tokens, the suite s has 2,000"):
        published(replace(SUITE, budget=Budget(TOKENS, 2000)), record_json(SUITE, runs), "abc")
