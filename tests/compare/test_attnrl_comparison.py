"""The table by step of docs/results/comparison.md is that of the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.comparison_by_step import by_step
from marsrl_verl.compare.record import runs_of
from marsrl_verl.compare.suite import load_suite

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.with_presets("grpo")
def test_the_table_by_step_is_the_records():
    finished = runs_of(DOCS / "results" / "comparison_attnrl.json")
    assert (
        by_step(load_suite("attnrl"), finished, (4, 8, 12, 16))
        in (DOCS / "results" / "comparison.md").read_text()
    )
