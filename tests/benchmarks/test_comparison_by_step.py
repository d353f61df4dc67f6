"""Curves at equal steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.comparison_by_step import at_step, by_step, steps_between
from marsrl_verl.compare.curves import RunCurve
from marsrl_verl.compare.plan import Run
from marsrl_verl.compare.results import Finished
from marsrl_verl.compare.suite import TOKENS, Budget, Suite

SUITE = Suite(
    "s", "Two", Budget(TOKENS, 1000), 9,
    {"one": (), "two": ("marsrl.evaluation.every=4",)},
    overrides=("algo=marsrl", "marsrl.evaluation.every=2"),
    curve="val/solver_accuracy", level_of="one",
)  # fmt: skip


def run(method: str, seed: int, taken: tuple[int, ...], values: tuple[float, ...], tmp_path) -> Finished:
    curve = RunCurve("val/solver_accuracy", taken, values)
    return Finished(Run(method, seed, (), tmp_path), {}, 9, 0, 0, 0.0, 40, {}, curve)


@pytest.fixture
def runs(tmp_path) -> list[Finished]:
    """Nine steps each: evaluations after 0, 2, 4, 6, 8 and after 0, 4, 8 steps, and at the end."""
    one, two = (0, 200, 400, 600, 800, 900), (0, 2000, 4000, 4500)
    return [
        run("one", 1, one, (0.1, 0.2, 0.3, 0.4, 0.5, 0.9), tmp_path),
        run("one", 2, one, (0.1, 0.2, 0.5, 0.4, 0.7, 0.9), tmp_path),
        run("two", 1, two, (0.1, 0.4, 0.6, 0.9), tmp_path),
        run("two", 2, two, (0.1, 0.8, 0.8, 0.9), tmp_path),
    ]


def test_the_last_override_counts():
    assert [steps_between(SUITE, method) for method in SUITE.methods] == [2, 4]
    with pytest.raises(ValueError, match=r"s: one has no marsrl\.evaluation\.every"):
        steps_between(replace(SUITE, overrides=()), "one")


@pytest.mark.parametrize(("step", "value"), [(0, (0.1, 0)), (4, (0.4, 2000)), (8, (0.6, 4000))])
def test_a_curve_after_a_step(runs, step, value):
    assert at_step(runs[2], step, 4) == value


@pytest.mark.parametrize("step", [2, 9, 12, -4])
def test_a_step_without_an_evaluation_is_named(runs, step):
    with pytest.raises(
        ValueError, match=rf"two-seed1 has evaluations after every 4 steps until 8, none after {step}"
    ):
        at_step(runs[2], step, 4)


@pytest.mark.parametrize(("every", "expected"), [(1, 10), (2, 6), (5, 3)])
def test_a_curve_with_another_number_of_evaluations_is_refused(runs, every, expected):
    with pytest.raises(ValueError, match=rf"two-seed1 has 4 .* 9 steps, expected {expected} from"):
        at_step(runs[2], 0, every)


def test_a_suite_without_a_level_is_refused(runs):
    with pytest.raises(ValueError, match="suite s has no level_of"):
        by_step(replace(SUITE, level_of=""), runs, [4])


def test_the_table_by_hand(runs):
    """Means over steps 4 and 8: one 0.4, 0.6; two 0.5, 0.8. Differences 0.1, 0.2: 15 ± 12.706 · 5."""
    assert by_step(SUITE, runs, (4, 8)).splitlines() == [
        "| | step 4 | step 8 | less one |",
        "|---|---:|---:|---:|",
        "| one | 40.0 (400) | 60.0 (800) |  |",
        "| two | 60.0 (2,000) | 70.0 (4,000) | +15.0 [-48.5, +78.5] |",
    ]


def test_the_order_of_runs_does_not_matter(runs):
    assert by_step(SUITE, runs[::-1], (4, 8)) == by_step(SUITE, runs, (4, 8))
