"""What docs/results/comparison.md says of equal steps is what the record says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.comparison_by_step import by_step
from marsrl_verl.compare.record import runs_of
from marsrl_verl.compare.suite import load_suite

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.with_presets("grpo")
def test_the_difference_at_equal_steps_is_the_records():
    finished = runs_of(DOCS / "results" / "comparison_attnrl.json")
    (said,) = re.findall(
        r"except entropy: (\S+ \[\S+ \S+\])\.", (DOCS / "results" / "comparison.md").read_text()
    )
    assert said.replace("−", "-") in by_step(load_suite("attnrl"), finished, (4, 8, 12, 16))
