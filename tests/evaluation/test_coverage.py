"""Nominal 95 % intervals over problems hold the truth about as often in simulated evaluations."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.interval_coverage import FIGURES, Setting, coverage

TRIALS = 600
"""The standard error of a coverage of 95 % is 0.9 points."""


@pytest.mark.parametrize(
    ("name", "problems", "repeats"),
    [one for one in itertools.product(FIGURES, (30, 200), (1, 4)) if one[::2] != ("share_estimate", 1)],
)
def test_coverage(name, problems, repeats):
    skewed = name == "mean_estimate" and problems == 30  # token counts have a long tail
    found = coverage(name, Setting(problems, repeats, 0.6, 1.0), TRIALS)
    assert (0.88 if skewed else 0.92) <= found <= 0.98


@pytest.mark.parametrize(("name", "least"), [("estimate", 0.93), ("difference", 0.95)])
def test_coverage_of_a_hard_benchmark(name, least):
    """One right answer in twenty, on few of 30 problems: a variance from these alone."""
    assert coverage(name, Setting(30, 8, 0.05, 0.5), TRIALS) >= least


def test_an_interval_that_takes_repeats_for_problems_is_found_out(monkeypatch):
    monkeypatch.setattr("marsrl_verl.evaluation.estimators._clustered_size", lambda values, *_: len(values))
    assert coverage("estimate", Setting(30, 8, 0.6, 1.0), TRIALS) < 0.8
