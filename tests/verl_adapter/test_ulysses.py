"""Two ranks that share every sequence learn what one learns from padded rows (`rank_ulysses.py`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from fresh_python import run_program
from rank_ulysses import PACKED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("verl") is None or find_spec("vllm") is None, reason="the engine and its workers are verl's"
    ),
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12),
        reason="torch 2.11's gloo has no all_to_all",
    ),
]
PROGRAM = Path(__file__).with_name("rank_ulysses.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program has left what it found."""
    return run_program(PROGRAM, tmp_path_factory.mktemp("ulysses"))


@pytest.mark.parametrize("case", PACKED)
def test_shared_sequences_train_what_rows_train(folder, case):
    rows, shared = (torch.load(folder / f"{name}.pt", weights_only=False) for name in ("rows", case))
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
