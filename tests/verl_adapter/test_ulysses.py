"""Two ranks that share every sequence learn what one learns from padded rows (`rank_ulysses.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_python import by_ranks, needs_workers, run_program
from rank_ulysses import CASES

pytestmark = [
    pytest.mark.slow,
    needs_workers,
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
        reason="torch 2.11's gloo has no all_to_all",
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    program = Path(__file__).with_name("rank_ulysses.py")
    return by_ranks(run_program(program, tmp_path_factory.mktemp("ulysses")))


@pytest.mark.parametrize("case", CASES)
def test_shared_sequences_train_what_rows_train(results, case):
    rows, shared = results[1], results[2][case]
    torch.testing.assert_close(shared["log_probs"], rows["log_probs"], rtol=0.0, atol=1e-5)
    (expected,), (found,) = rows["gradients"], shared["gradients"]
    assert expected.keys() == found.keys()
    off = {
        name: float((found[name] - one).norm() / one.norm())
        for name, one in expected.items()
        if float(one.norm()) > 1e-6
    }
    assert len(off) > 10 and max(off.values()) < 1e-4, off
    # Of both ranks' parts of the weights, though one of them reports.
    assert shared["metrics"]["actor/weights_max"] == pytest.approx(rows["metrics"]["actor/weights_max"])
