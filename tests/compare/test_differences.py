"""The table of differences from rows, and the published ones from the rows in docs/results."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from marsrl_verl.compare.differences import differences_table, fewest_cases
from marsrl_verl.compare.results import Row
from marsrl_verl.evaluation.estimators import FEW

DOCS = Path(__file__).parents[2] / "docs"


def rows(values: dict[str, list[float | None]], metric: str = "solver_accuracy", cases=None) -> list[Row]:
    return [
        Row(method, seed, f"after/{metric}", value, 1000, 0, 1.0, cases)
        for method, found in values.items()
        for seed, value in enumerate(found, 1)
    ]


def line(table: str, label: str) -> str:
    [found] = [one for one in table.splitlines() if one.startswith(f"| {label} |")]
    return found


def test_differences_by_hand():
    # 2, 3 and 4 points: s = 1, half width 4.30265 / sqrt(3) = 2.484; of 20 divisions 14 are as far apart.
    table = differences_table(rows({"a": [0.5, 0.7, 0.9], "b": [0.52, 0.73, 0.94]}))
    assert table.splitlines()[0] == "| less a | b |"
    assert line(table, "Solver accuracy") == "| Solver accuracy | **+3.0 [+0.5, +5.5]**, p 0.70 |"
    assert line(table, "System accuracy") == "| System accuracy | – |"


def test_the_intervals_may_overlap_and_the_difference_be_clear():
    values = {"a": [0.90, 0.80, 0.70], "b": [0.95, 0.86, 0.75], "c": [0.95, 0.80, 0.65]}
    found = line(differences_table(rows(values)), "Solver accuracy")
    assert "| **+5.3 [+3.9, +6.8]**, p 0.60 | +0.0 [-12.4, +12.4], p 1.00 |" in found


@pytest.mark.parametrize(("cases", "bold"), [(FEW - 1, False), (FEW, True), (None, True)])
def test_figures_of_few_cases_are_not_marked(cases, bold):
    one = rows({"a": [0.1, 0.2], "b": [0.5, 0.6]}, "verifier_recall", cases)
    assert ("**" in line(differences_table(one), "Verifier recall")) == bold


def test_the_fewest_cases_of_a_method():
    one = [*rows({"a": [0.1]}, cases=40), *rows({"a": [0.1]}, cases=12), *rows({"a": [None]}, cases=0)]
    assert fewest_cases(one, "after/solver_accuracy", "a") == 12
    assert fewest_cases(one, "after/solver_accuracy", "b") is None


@pytest.mark.parametrize("suite", ["marsrl", "selection", "attnrl"])
def test_published_differences_are_those_of_the_published_rows(suite):
    plain = json.loads((DOCS / "results" / f"comparison_{suite}.json").read_text())
    table = differences_table([Row(**one) for one in plain]).splitlines()
    page = (DOCS / "comparison.md").read_text().splitlines()
    start = page.index(table[0])
    published = list(itertools.takewhile(lambda one: one.startswith("|"), page[start:]))
    assert [one for one in published if one not in table] == []
    assert {line("\n".join(table), f"{name} accuracy") for name in ("Solver", "System")} <= set(published)
