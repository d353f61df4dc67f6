"""Suites that search a setting's best value for each method."""

from __future__ import annotations

import pytest
from fake_training import COMMAND as FAKE
from fake_training import SUITE

from marsrl_verl.compare.application import main
from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.suite import SuiteError, load_suite

GRID = f"{SUITE}primary: [solver_accuracy]\nfirst_seed: 101\ngrid: {{fake.solver: [0.1, 0.3, 0.2]}}\n"


@pytest.fixture
def search(tmp_path):
    path = tmp_path / "search.yaml"
    path.write_text(GRID)
    return path


def test_every_method_runs_with_every_value_on_seeds_of_its_own(search, tmp_path):
    suite = load_suite(str(search))
    assert list(suite.methods) == ["one_0.1", "one_0.3", "one_0.2", "two_0.1", "two_0.3", "two_0.2"]
    assert suite.methods["two_0.3"] == ("fake.method=2", "fake.solver=0.3") and suite.judged == ()
    runs = plan_runs(suite, 2, tmp_path)
    assert {run.seed for run in runs} == {101, 102} and len(runs) == 12
    assert "marsrl.run.seed=102" in runs[-1].overrides


def test_the_report_names_the_best_value(search, tmp_path, capsys):
    assert main([str(search), "--seeds", "1", "--output", str(tmp_path / "out")], FAKE) == 0
    report = (tmp_path / "out" / "report.md").read_text()
    assert "## Values of `fake.solver`\n\n| | 0.1 | 0.3 | 0.2 | best |" in report
    assert "| one | 20.0 % | 40.0 % | 30.0 % | 0.3 |" in report
    assert "seed (101) with" in report and "Primary outcomes" not in report
    assert "can show no difference" not in capsys.readouterr().out, "a search gives no verdicts"


def test_a_value_without_a_run_is_no_best_one(search, tmp_path):
    words = [str(search), "--seeds", "1", "--output", str(tmp_path / "out"), "fake.fails_at_seed=101"]
    assert main(words, FAKE) == 1
    assert "Values of" not in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GRID.replace("{fake.solver: [0.1, 0.3, 0.2]}", "[1]"), "expected a setting with a list of values"),
        (GRID.replace("[0.1, 0.3, 0.2]", "0.1"), "grid.fake.solver = 0.1, expected"),
        (GRID.replace("[0.1, 0.3, 0.2]", "[0.1, 0.1]"), "grid.fake.solver"),
        (GRID.replace("[0.1, 0.3, 0.2]", "[a/b]"), "grid.fake.solver"),
        (GRID.replace("primary: [solver_accuracy]\n", ""), "a grid needs `primary`"),
        (GRID.replace("101", "0"), "first_seed = 0, expected a whole number of at least 1"),
    ],
)
def test_a_wrong_grid_is_refused(tmp_path, text, said):
    path = tmp_path / "search.yaml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=r"search\.yaml") as refusal:
        load_suite(str(path))
    assert said in str(refusal.value)


@pytest.mark.with_presets("arpo")
def test_a_search_may_be_like_a_suite_that_asks_for_a_level(tmp_path):
    path = tmp_path / "search.yaml"
    path.write_text("like: arpo\nfirst_seed: 101\ngrid: {actor_rollout_ref.actor.optim.lr: [0.001, 0.002]}\n")
    suite = load_suite(str(path))
    assert suite.level_of == "" and "arpo_0.002" in suite.methods
