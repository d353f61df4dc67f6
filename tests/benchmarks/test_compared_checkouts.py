"""Benchmarks of two checkouts: the order of their runs, whose package they import, and ratios of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.checkouts import AFTER, BEFORE, in_turn, require_package
from benchmarks.startup import Measurement
from benchmarks.throughput.compare import REFERENCE, processor_table, throughput_table
from benchmarks.throughput.plan import PLAIN, PLAN_VARIABLE, PLUGIN, Plan, Row, Workload

ROOT = Path(__file__).parents[2]
TREES = {BEFORE: ROOT, AFTER: ROOT}


def test_every_other_repeat_is_in_reverse():
    assert list(in_turn(TREES, 0, REFERENCE)) == [BEFORE, REFERENCE, AFTER]
    assert list(in_turn(TREES, 1, REFERENCE)) == [AFTER, REFERENCE, BEFORE]
    assert list(in_turn({BEFORE: ROOT}, 1)) == [BEFORE]


def test_a_checkout_without_the_package_is_refused(tmp_path):
    require_package(ROOT)
    with pytest.raises(SystemExit, match="expected its own package"):
        require_package(tmp_path)


def test_a_plan_tells_earlier_checkouts_nothing_that_they_do_not_know(tmp_path, monkeypatch):
    plan = Plan(("a=1",), (Workload("natural", 48, False, 3), Workload("d", 64, True, 2, 3)), (), 8, 3, "")
    path = plan.write(tmp_path / "plan.json")
    told = json.loads(path.read_text())
    assert [sorted(one) for one in told["workloads"]] == [
        ["ignore_end", "max_tokens", "name", "problems"],
        ["ignore_end", "max_tokens", "name", "problems", "turns"],
    ]
    assert "own_processes" not in told
    monkeypatch.setenv(PLAN_VARIABLE, str(path))
    assert Plan.read() == Plan(plan.overrides, plan.workloads, (), 8, 3, "")


def rows(checkout: str, variant: str, *seconds: float, cpu: float = 0.0) -> list[Row]:
    return [
        Row(
            variant, "natural", 1, one, 10, 1000, 9, threads=1, repeat=repeat,
            processor_seconds={"driver": cpu}, checkout=checkout,
        )
        for repeat, one in enumerate(seconds)
    ]  # fmt: skip


def cells(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ratios_are_those_of_one_repeat():
    measured = [
        *rows(BEFORE, PLUGIN, 2.0, 8.0, cpu=0.1),
        *rows(AFTER, PLUGIN, 1.0, 4.0, cpu=0.05),
        *rows(REFERENCE, PLAIN, 0.5, 2.0),
    ]
    shown = throughput_table(measured, "natural")
    assert cells(shown, "plugin, tokens/s")[3] == "2.000 ± 0.000"
    assert cells(shown, f"plugin in % of {PLAIN}")[1:3] == ["25 ± 0", "50 ± 0"]
    assert cells(processor_table(measured, "natural"), "plugin: driver")[1:] == [
        "10.000 ± 0.000", "5.000 ± 0.000", "-5.000 ± 0.000",
    ]  # fmt: skip


def test_starts_are_compared_in_pairs():
    results = {
        ("template", BEFORE): [Measurement(10.0, {"launcher": 4.0}), Measurement(20.0, {"launcher": 8.0})],
        ("template", AFTER): [Measurement(5.0, {"launcher": 4.0}), Measurement(10.0, {"launcher": 8.0})],
    }
    shown = startup.comparison(results, ["template"])
    assert cells(shown, "template: wall, s")[3:] == ["0.500 ± 0.000", "0.50, 0.50"]
    assert cells(shown, "template: CPU, s: launcher")[3:] == ["1.000 ± 0.000", "1.00, 1.00"]
