from __future__ import annotations

import sys

import pytest
import torch

from benchmarks.fci import measure
from benchmarks.timing import resident_peak

MIB = 2**18
"""Elements of float32."""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is Linux's")
@pytest.mark.parametrize("kept", [0, 200])
def test_the_peak_is_what_the_work_takes(kept):
    held = torch.ones(kept * MIB)  # there before: not counted

    def work() -> torch.Tensor:
        taken = torch.ones(150 * MIB)
        del taken
        return torch.ones(50 * MIB)

    peak = resident_peak(work)
    assert peak is not None
    assert 140 < peak < 220
    assert held.numel() == kept * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is Linux's")
def test_the_chunked_way_takes_less_memory_than_the_whole_matrix():
    rows = {row.variant: row for row in measure(["1.5B"], [1024], "cpu", repeats=1)}
    assert set(rows) == {"attention", "definition", "materialised", "chunked"}
    whole = 12 * 1024 * 1024 * 4 / 2**20  # one matrix of float32 for twelve heads
    assert rows["materialised"].peak_mib > whole
    assert rows["chunked"].peak_mib < rows["materialised"].peak_mib / 2
