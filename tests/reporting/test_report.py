import io
import json
import re
import struct
from dataclasses import replace

import pytest
from evaluation_tools import system
from markdown_it import MarkdownIt
from marsrl_script import ScriptedEngine, SkillModel
from matplotlib.axes import Axes
from rich.console import Console

from marsrl_verl.algos.marsrl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.evaluation.estimators import Estimate, Observations
from marsrl_verl.evaluation.runs import ExampleSummary
from marsrl_verl.evaluation.suite import EvaluationRecord, evaluate
from marsrl_verl.reporting.curve import HEIGHT, WIDTH, draw_learning_curve, draw_role_panels, smooth
from marsrl_verl.reporting.metrics_log import StepMetrics
from marsrl_verl.reporting.report import finish_run
from marsrl_verl.reporting.run_folder import RunFolder
from marsrl_verl.reporting.summary import RunFacts, build_summary, changes
from marsrl_verl.reporting.tables import (
    evaluation_markdown,
    evaluation_table,
    markdown_table,
    percent,
    points,
    terminal_table,
    verdict_rule,
)

SAMPLING = {role: Sampling(600, 9000) for role in (SOLVER, VERIFIER, CORRECTOR)}
PROBLEMS = [Problem(f"p{i}", f"What is {i}?", str(i)) for i in range(40)]
FACTS = RunFacts("demo", "MarsRL", "pipelined", 1, 12, 431.2, 1234567, {"verl": "0.9.1"}, {"ranks": 2})
KEYS = {
    "solver_accuracy",
    "verifier_accuracy",
    "verifier_recall",
    "verifier_precision",
    "verifier_false_alarm_rate",
    "corrector_fix_rate",
    "corrector_break_rate",
    "system_accuracy",
}


def evaluated(tag, step, *, greedy=True, **rules):
    engine = ScriptedEngine(SkillModel(seed=step, solver=0.9 if step else 0.3))
    evaluation = system(MathPrompts(), **rules)
    return evaluate(engine, PROBLEMS, evaluation, SAMPLING, tag=tag, step=step, greedy=greedy)


def record(step, **outcomes):
    """A record with (successes, total) per metric, one observation per problem."""
    observed = {
        name: Observations(tuple(i < yes for i in range(n)), tuple(f"p{i}" for i in range(n)))
        for name, (yes, n) in outcomes.items()
    }
    return EvaluationRecord(
        "after" if step else "before", step, 0.95, 1.0, 50, 1, 1.0, 10, observed, metrics=EVALUATION_METRICS
    )


def test_summary_has_exactly_the_promised_keys():
    before, after = evaluated("before", 0).record, evaluated("after", 12).record
    summary = json.loads(json.dumps(build_summary(before, after, FACTS)))
    assert set(summary) == {"before", "after", "change", "metrics", "headline", "run"}
    assert set(summary["metrics"]) == KEYS
    assert summary["headline"] == ["solver_accuracy", "system_accuracy", "verifier_recall"]
    for side in ("before", "after"):
        assert set(summary[side]) == {
            f"{key}{end}" for key in (*KEYS, "verifier_f1") for end in ("", "_greedy")
        }
        assert all(set(value) == {"mean", "low", "high", "n"} for value in summary[side].values())
    solver = summary["after"]["solver_accuracy"]
    assert solver["mean"] == pytest.approx(after.observations["solver_accuracy"].mean)
    change = summary["change"]["solver_accuracy"]
    assert change["mean"] == pytest.approx(solver["mean"] - summary["before"]["solver_accuracy"]["mean"])
    assert set(summary["change"]) == KEYS | {f"{key}_greedy" for key in KEYS}
    loop = summary["run"]["evaluations"][1]["system"]
    assert loop == {"correction_rounds": 2, "accept_passes": 1, "reject_fails": None, "fallback": "last"}
    assert summary["run"]["seed"] == 1 and summary["run"]["versions"] == {"verl": "0.9.1"}


def test_an_evaluation_that_was_not_done_is_null():
    summary = build_summary(None, evaluated("after", 3).record, FACTS)
    assert summary["before"] is None
    assert summary["change"]["solver_accuracy"] == {"mean": None, "low": None, "high": None, "n": 0}


def test_changes_are_judged_by_the_paired_difference():
    before = record(0, solver_accuracy=(10, 50), system_accuracy=(30, 50), verifier_false_alarm_rate=(2, 50))
    after = record(9, solver_accuracy=(40, 50), system_accuracy=(33, 50), verifier_false_alarm_rate=(30, 50))
    rows = {row.name: row for row in changes(before, after)}
    assert rows["solver_accuracy"].direction == 1
    # 30 and 33 of 50, all 30 among the 33: the intervals overlap, and still no problem got worse.
    assert rows["system_accuracy"].before.high > rows["system_accuracy"].after.low
    assert rows["system_accuracy"].direction == 0  # three problems are not enough
    assert rows["verifier_false_alarm_rate"].direction == -1  # more is worse
    assert rows["corrector_fix_rate"].direction == 0  # nothing observed
    text = markdown_table(changes(before, after))
    assert "| Solver accuracy | 20.0 % [11.2, 33.0] | 80.0 % [67.0, 88.8] | +60.0 [" in text
    assert "| better |" in text and "| WORSE |" in text
    assert "| Corrector fix rate | – | – | – |  |" in text
    assert "greedy" not in text


def test_intervals_may_overlap_where_the_paired_difference_is_clear():
    [row] = [
        row
        for row in changes(record(0, solver_accuracy=(25, 50)), record(9, solver_accuracy=(33, 50)))
        if row.name == "solver_accuracy"
    ]
    assert row.before.high > row.after.low
    assert row.delta.low > 0
    assert row.direction == 1


@pytest.mark.parametrize(("cases", "direction"), [(29, 0), (30, 1)])
def test_few_cases_are_counted_and_not_judged(cases, direction):
    rows = changes(record(0, system_accuracy=(5, 50)), record(9, system_accuracy=(cases, cases)))
    [row] = [row for row in rows if row.name == "system_accuracy"]
    assert row.delta.low > 0
    assert row.direction == direction
    assert (f"n={cases}" in markdown_table(rows)) == (direction == 0)


def test_figures_that_follow_the_errors_are_not_judged():
    """Precision falls when fewer solutions are incorrect, however good the Verifier is."""
    found = ("verifier_accuracy", "verifier_recall", "verifier_precision")
    names = (*found, "corrector_fix_rate", "corrector_break_rate")
    rows = changes(record(0, **dict.fromkeys(names, (45, 50))), record(9, **dict.fromkeys(names, (5, 50))))
    judged = {row.name: row.direction for row in rows if row.name in names}
    assert all(row.delta.high < 0 for row in rows if row.name in names)
    assert judged == dict.fromkeys(names, 0)
    for word in ("Verifier precision", "Corrector fix rate", "Corrector break rate", "fewer than 30 cases"):
        assert word in verdict_rule(rows)


def test_figures():
    assert percent(Estimate(0.4125, 0.3, 0.5, 80)) == "41.2 % [30.0, 50.0]"
    assert percent(Estimate(0.4125, 0.3, 0.5, 8)) == "41.2 % [30.0, 50.0] n=8"
    assert points(Estimate(-0.1, -0.25, 0.05, 8)) == "-10.0 [-25.0, +5.0]"
    assert points(Estimate(-0.1, None, None, 1)) == "-10.0"
    assert percent(Estimate(None, None, None, 0)) == "–"


@pytest.mark.parametrize("width", [120, 80, 60])
def test_terminal_table(monkeypatch, width):
    """Nothing is cut, on a narrow console neither: verdicts, means and intervals are all there."""
    monkeypatch.setenv("COLUMNS", str(width))
    before = record(0, solver_accuracy=(20, 50), verifier_false_alarm_rate=(2, 50), verifier_recall=(3, 11))
    after = record(9, solver_accuracy=(48, 50), verifier_false_alarm_rate=(48, 50), verifier_recall=(9, 28))
    rows = changes(before, after)
    console = Console(file=io.StringIO())
    console.print(terminal_table(rows, console))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text.replace("(n=…)", "")
    assert (text.count("WORSE"), text.count("better")) == (1 + 1, 1 + 1), "the verdict, and the rule below"
    for row in rows:
        for cell in (percent(row.before), percent(row.after), points(row.delta)):
            assert all(part in text for part in re.findall(r"\[.*?\]|^[^ ]+(?: %)?|n=\d+", cell)), cell
    assert all(word in text for row in rows for word in row.info.label.split())
    assert ("96.0 % [" in text) == (width == 120)


@pytest.mark.parametrize("width", [80, 60])
def test_evaluation_table(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    console = Console(file=io.StringIO())
    found = record(9, solver_accuracy=(48, 50), verifier_recall=(9, 28))
    console.print(evaluation_table(found))
    text = console.file.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert all(percent(one) in text for one in found.estimates.values())


def test_several_answers_have_rows_of_their_own():
    def with_answers(count: int) -> str:
        engine = ScriptedEngine(SkillModel(seed=3, solver=0.5))
        runs = {"tag": "alone", "step": 0, "greedy": True, "samples_per_problem": count}
        found = evaluate(engine, PROBLEMS, system(MathPrompts()), SAMPLING, **runs).record
        values = found.estimates
        text = evaluation_markdown(found)
        assert "pass@" not in text.partition("greedy")[2]
        if count == 4:
            assert f"| Solver pass@4 | {percent(values['solver_pass_at_4'])} | 40 |" in text
            assert f"| Solver majority answer | {percent(values['solver_majority_at_k'])} | 40 |" in text
        return text

    assert "pass@2" not in with_answers(4) and "pass@" not in with_answers(1)


def test_unlike_numbers_of_answers_have_no_pass_at_k():
    engine = ScriptedEngine(SkillModel(seed=3, solver=0.5))
    alike = evaluate(
        engine, PROBLEMS, system(MathPrompts()), SAMPLING, tag="alone", step=0, samples_per_problem=2
    ).record
    assert "pass@2" in evaluation_markdown(alike)
    solver = alike.observations["solver_accuracy"]
    more = Observations(
        (*solver.outcomes, True, True), (*solver.problems, PROBLEMS[0].problem_id, PROBLEMS[0].problem_id)
    )
    names = {"one": [PROBLEMS[0].problem_id], "rest": [one.problem_id for one in PROBLEMS[1:]]}
    unlike = replace(
        alike,
        observations={**alike.observations, alike.headline[0]: more, "solver_accuracy": more},
        sources=names,
    )
    assert "pass@2" not in evaluation_markdown(unlike)


def test_smoothing():
    assert smooth([0.0, 3.0, 6.0, 3.0], 3) == [1.5, 3.0, 4.0, 4.5]
    assert smooth([1.0, 2.0], 1) == [1.0, 2.0]
    assert smooth([], 3) == []
    with pytest.raises(ValueError, match="found 0"):
        smooth([1.0], 0)


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_curve_has_its_size_with_and_without_data(tmp_path):
    steps = [StepMetrics(i, {"role/solver/reward_mean": i / 30, "x": None}, {}) for i in range(1, 30)]
    records = [record(0, solver_accuracy=(10, 50)), record(29, solver_accuracy=(40, 50))]
    full = draw_learning_curve(tmp_path / "full.png", steps, records)
    empty = draw_learning_curve(tmp_path / "empty.png", [], [])
    assert png_size(full) == png_size(empty) == (WIDTH, HEIGHT) == (1200, 700)
    assert full.read_bytes() != empty.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.png", "full.png"]


def test_panels_by_role(monkeypatch, tmp_path):
    drawn = []
    plot = Axes.plot
    noted = lambda axes, x, y, **more: drawn.append((more["label"], x, y)) or plot(axes, x, y, **more)  # noqa: E731
    monkeypatch.setattr(Axes, "plot", noted)
    names = ("response_length_mean", "truncation_frac", "failed_frac", "zero_std_groups", "groups")
    one = {f"role/verifier/{name}": value for name, value in zip(names, (50, 0.25, 0.25, 2, 8), strict=True)}
    path = tmp_path / "roles.png"
    assert not draw_role_panels(path, [StepMetrics(1, {"role/solver/reward_mean": 1.0}, {})], ("solver",))
    assert not path.exists()
    assert draw_role_panels(path, [StepMetrics(1, {}, {}), StepMetrics(2, one, {})], ("solver", "verifier"))
    assert drawn == [("Verifier", (2,), (value,)) for value in (50, 0.5, 0.25)]
    assert png_size(path) == (1200, 350)


def test_passes_that_count_are_no_part_of_the_curve(monkeypatch, tmp_path):
    """As a phase of ReMA's single turn begins: 0.83 of all problems, then 0.29 of those that are kept."""
    drawn = []
    plot = Axes.plot

    def noted(axes, *given, **more):
        drawn.append(given)
        return plot(axes, *given, **more)

    monkeypatch.setattr(Axes, "plot", noted)
    steps = [StepMetrics(1, {"role/solver.counting/reward_mean": 0.83}, {})]
    steps += [StepMetrics(step, {"role/solver/reward_mean": 0.29}, {}) for step in (2, 3)]
    draw_learning_curve(tmp_path / "curve.png", steps, [], roles=("solver",))
    assert [(list(x), list(y), *how) for x, y, *how in drawn] == [
        ([1], [0.83], "x"), ([2, 3], [0.29, 0.29], "."), ([2, 3], [0.29, 0.29]),
    ]  # fmt: skip


def test_finish_run_writes_everything(tmp_path):
    folder = RunFolder.create(tmp_path / "demo")
    result = evaluated("after", 12)
    folder.write_evaluation(evaluated("before", 0))
    folder.write_evaluation(result)
    for step in range(1, 13):
        folder.metrics.append(step, {"role/solver/reward_mean": 0.3 + step / 20})
    finished = finish_run(folder, FACTS, result, ROLES)
    assert json.loads(folder.summary_path.read_text())["after"].keys() >= KEYS
    assert png_size(folder.curve_path) == (1200, 700)
    report = folder.report_path.read_text()
    for expected in (
        "# MarsRL: demo",
        "| Solver accuracy |",
        "![Learning curve](learning_curve.png)",
        "## An example after training",
        "| seed | 1 |",
        "| tokens generated for training | 1,234,567 |",
        "| verl version | 0.9.1 |",
        "| ranks | 2 |",
        "Each of 40 held-out problems",
        "up to 2 verify–correct round(s). A solution with verdict Correct is accepted; where none is, the",
        "Wilson",
    ):
        assert expected in report
    assert finished.after == result.record
    assert {row.name for row in finished.changes} == KEYS | {f"{key}_greedy" for key in KEYS}


@pytest.mark.parametrize(
    ("fallback", "said"),
    [
        ("passes", "where none is, the one with the most Correct verdicts is the answer."),
        ("majority", "without any such verdict the most frequent final answer."),
        ("released", "judged most often, accepted or not (the released rule)."),
    ],
)
def test_the_report_says_how_the_loop_ended(tmp_path, fallback, said):
    folder = RunFolder.create(tmp_path)
    rules = {"correction_rounds": 4, "accept_passes": 3, "reject_fails": 2, "fallback": fallback}
    folder.write_evaluation(evaluated("after", 12, greedy=False, **rules))
    finish_run(folder, FACTS, None)
    report = folder.report_path.read_text()
    assert (
        "3 Correct verdicts in a row" in report and "after 2 Wrong verdict(s) in a row the run ends" in report
    )
    assert said in report


def test_of_the_solver_alone_the_report_says_so(tmp_path):
    folder = RunFolder.create(tmp_path)
    result = evaluated("after", 12, correction_rounds=0)
    folder.write_evaluation(result)
    finished = finish_run(folder, FACTS, result, ROLES)
    report = folder.report_path.read_text()
    assert "The Solver alone" in report and "Verifier accuracy**" not in report
    assert finished.example.summary == ExampleSummary(2, "Solved by the Solver")
    assert json.loads(folder.summary_path.read_text())["run"]["evaluations"][0]["system"] == {}


def test_an_earlier_ends_evaluation_is_not_shown_as_the_end(tmp_path):
    folder = RunFolder.create(tmp_path / "demo")
    folder.write_evaluation(evaluated("before", 0))
    folder.write_evaluation(evaluated("after", 10))
    finished = finish_run(folder, FACTS, None)  # ends at step 12
    assert finished.after is None and json.loads(folder.summary_path.read_text())["after"] is None
    assert "| last evaluation | after step 10, not at the end |" in folder.report_path.read_text()


def test_finish_run_without_evaluations(tmp_path):
    folder = RunFolder.create(tmp_path / "demo")
    finish_run(folder, FACTS, None)
    assert "This run was not evaluated." in folder.report_path.read_text()
    assert json.loads(folder.summary_path.read_text())["after"] is None


def test_a_run_that_ended_before_it_trained_has_a_report_with_its_warnings(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    facts = replace(
        FACTS, extra={"ended early": "step 1: x = nan"}, warnings=["From step 2 on: `a` <b> | c."]
    )
    finish_run(folder, facts, None, ROLES)
    text = folder.report_path.read_text()
    warned = text.partition("## Warnings")[2].partition("##")[0]
    assert [one.content for one in MarkdownIt().parse(warned) if one.type == "inline"] != []
    assert "<b>" not in MarkdownIt().render(warned)
    assert "| ended early | step 1: x = nan |" in text
    assert json.loads(folder.summary_path.read_text())["run"]["warnings"] == facts.warnings
    finish_run(folder, FACTS, None, ROLES)
    assert "## Warnings" not in folder.report_path.read_text()
