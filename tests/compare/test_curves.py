"""Areas under training curves, and when they came to a level."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from fake_training import write_run
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.compare.curves import (
    SMOOTHED,
    Reached,
    RunCurve,
    area,
    final_level,
    reached,
    smoothed,
    training_curve,
)
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.report import report_markdown
from marsrl_verl.compare.results import read_finished
from marsrl_verl.compare.suite import TOKENS, Budget, Suite
from marsrl_verl.evaluation.estimators import Estimate, Observations
from marsrl_verl.evaluation.suite import EvaluationRecord
from marsrl_verl.reporting.metrics_log import StepMetrics


def curve(counted, values):
    return np.array(counted, dtype=float), np.array(values, dtype=float)


def test_the_area_is_the_mean_height_over_the_budget():
    # Level at 0.2 for 100, a slope up to 0.6 over 200, level at 0.6 for 100: (20 + 80 + 60) / 400.
    assert area(curve([100, 300], [0.2, 0.6]), 400) == pytest.approx(0.4)
    assert area(curve([100], [0.5]), 400) == 0.5
    assert area(curve([], []), 400) is None


def test_what_is_past_the_budget_counts_no_more():
    whole = curve([100, 300, 900], [0.2, 0.6, 0.6])
    assert area(whole, 400) == pytest.approx(area(curve([100, 300], [0.2, 0.6]), 400))


def test_a_level_is_the_mean_of_the_last_points():
    counted, values = smoothed(curve(range(10, 60, 10), [0, 0, 0.3, 0.6, 0.9]))
    assert counted.tolist() == [30, 40, 50]
    assert values.tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert final_level(curve(range(10, 60, 10), [0, 0, 0.3, 0.6, 0.9])) == pytest.approx(0.6)
    assert final_level(curve([1, 2], [0, 1])) is None, "too few points for one"


def test_a_level_is_reached_between_two_points():
    rising = curve(range(10, 60, 10), [0, 0, 0.3, 0.6, 0.9])
    assert reached(rising, 0.2, 100) == Reached(pytest.approx(0.35), True)
    assert reached(rising, 0.05, 100) == Reached(0.3, True), "there from the first point on"
    assert reached(rising, 0.7, 100) == Reached(1.0, False)
    assert reached(curve([1, 2], [0, 1]), 0.5, 100) is None


@given(st.lists(st.floats(0, 1), min_size=SMOOTHED, max_size=30))
def test_every_run_comes_to_its_own_end(values):
    own = curve(range(1, len(values) + 1), values)
    found = reached(own, final_level(own), len(values))
    assert found.reached and 0 < found.share <= 1
    assert 0 <= area(own, len(values)) <= 1 + 1e-9


def run_of(tmp_path, suite: Suite, method: str, values: list[float], seed: int = 1):
    """A finished run with a step of 100 tokens for each value."""
    run = Run(method, seed, (), tmp_path)
    write_run(run.folder, 1000, 0.5)
    lines = [
        {
            "step": step,
            "metrics": {"rollout/generated_tokens": 100, "mine": value, "other": 2.0 * step},
            "timings": {"step": 1.0},
        }
        for step, value in enumerate(values, 1)
    ]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_finished(run, suite)


def test_a_report_has_areas_levels_and_figures(tmp_path):
    suite = Suite(
        "s", "Two", Budget(TOKENS, 1000), 9, {"slow": (), "fast": (), "never": ()},
        curve="mine", level_of="slow", figures=("other", "nowhere"),
    )  # fmt: skip
    finished = [
        run_of(tmp_path, suite, "slow", [0.1] * 5 + [0.5] * 5),
        run_of(tmp_path, suite, "fast", [0.5] * 10),
        run_of(tmp_path, suite, "never", [0.1] * 10),
    ]
    report = report_markdown(suite, 1, finished, [], None)
    assert "| | area under `mine` | level of slow after | `other` | `nowhere` |" in report
    assert "| slow | 28.0 % | 80.0 %, 1 of 1 came there | 11 | – |" in report
    assert "| fast | 50.0 % | 30.0 %, 1 of 1 came there | 11 | – |" in report
    assert "| never | 10.0 % | 100.0 %, 0 of 1 came there | 11 | – |" in report
    assert finished[0].curve.taken == tuple(range(100, 1100, 100))
    assert (finished[0].curve.metric, finished[0].curve.values[:2]) == ("mine", (0.1, 0.1))


def test_a_report_has_verdicts_on_primary_outcomes(tmp_path):
    suite = Suite(
        "s", "Two", Budget(TOKENS, 1000), 9, {"slow": (), "fast": ()},
        curve="mine", primary=("solver_accuracy", "area"), pairs=(("fast", "slow"),), margin=0.05,
    )  # fmt: skip
    finished = []
    for seed in range(1, 7):
        for method, height in (("slow", 0.1), ("fast", 0.5 + 0.01 * seed)):
            finished.append(run_of(tmp_path, suite, method, [height] * 10, seed))
    report = report_markdown(suite, 6, finished, [], None)
    lines = report.partition("## Primary outcomes")[2].splitlines()
    accuracy = next(line for line in lines if line.startswith("| fast less slow | Solver accuracy |"))
    assert (
        accuracy
        == "| fast less slow | Solver accuracy | 6 | +0.0 [+0.0, +0.0] | – | 1 | equivalent within ±5 |"
    )
    under = next(line for line in lines if line.startswith("| fast less slow | area |"))
    assert under.startswith("| fast less slow | area | 6 | +43.5 [+41.5, +45.5] | [+4")
    assert under.endswith("| 0.062 | not decided (7 seeds could) |"), "six seeds and two outcomes"


def test_a_curve_of_evaluations_is_of_the_problems_that_all_of_them_asked(tmp_path):
    """The first two problems are easier than the rest, which only the ends are asked."""
    evaluated = {0: (4, (1, 0, 0, 0)), 1: (2, (1, 1)), 2: (4, (1, 1, 0, 0))}
    records = [
        EvaluationRecord(
            f"step_{step}", step, 0.95, 1.0, count, 1, 1.0, 10,
            {"accuracy": Observations(tuple(map(bool, hits)), ("a", "b", "c", "d")[:count])},
            effort={"tokens": Estimate(float(count), None, None, count)},
            derived={"odd": Estimate(0.25, None, None, count)},
        )
        for step, (count, hits) in evaluated.items()
    ]  # fmt: skip
    steps = [StepMetrics(step, {"rollout/generated_tokens": 100, "mine": 0.0}, {}) for step in (1, 2)]

    def curve_of(metric: str) -> RunCurve:
        return training_curve(metric, steps, records)

    assert curve_of("val/accuracy") == RunCurve("val/accuracy", (0, 100, 200), (0.5, 1.0, 1.0))
    for whole in ("tokens", "odd"):
        found = curve_of(f"val/{whole}")
        assert (found.taken, found.excluded) == ((100,), 2), "what can't be taken apart"
    assert curve_of("val/nothing").excluded == curve_of("mine").excluded == 0
    suite = Suite("s", "One", Budget(TOKENS, 200), 9, {"one": ()}, curve="val/odd")
    found = replace(run_of(tmp_path, suite, "one", [0.0] * 2), curve=curve_of("val/odd"))
    assert "2 evaluations of each run are not in it" in report_markdown(suite, 1, [found], [], None)


def test_a_curve_may_be_of_the_evaluations():
    """Those before, between and after training, where their steps had ended."""
    steps = [StepMetrics(step, {"rollout/generated_tokens": 100}, {}) for step in range(1, 5)]
    records = []
    for step, right in ((0, [1, 0, 0, 0]), (2, [1, 1, 0, 0]), (4, [1, 1, 1, 0])):
        seen = {"accuracy": Observations.of((bool(one), str(n)) for n, one in enumerate(right))}
        records.append(EvaluationRecord(f"step_{step}", step, 0.95, 1.0, 4, 1, 1.0, 10, seen))
    found = training_curve("val/accuracy", steps, records)
    assert (found.taken, found.values) == ((0, 200, 400), (0.25, 0.5, 0.75))
    assert training_curve("val/nothing", steps, records).taken == ()
