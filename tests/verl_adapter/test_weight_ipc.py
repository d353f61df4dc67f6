"""verl's weight sync between two processes: through shared memory anywhere, through CUDA IPC on a GPU."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import ipc_weights
import pytest
from fresh_python import run_program
from ipc_weights import FAILURES, LARGER, ROUNDS, SHAPES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("verl") is None, reason="the weight sync is verl's"),
]
PROGRAM = Path(ipc_weights.__file__)


@pytest.fixture(scope="module")
def shared_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_program(PROGRAM, tmp_path_factory.mktemp("ipc"), "--shared-memory")


def differences(folder: Path) -> list[dict[str, float]]:
    return json.loads((folder / "received.json").read_text())


def test_every_weight_arrives_unchanged_in_every_round(shared_memory):
    assert differences(shared_memory) == [dict.fromkeys(SHAPES, 0.0)] * ROUNDS


@pytest.mark.gpu
def test_so_it_is_with_cuda_ipc(tmp_path):
    folder = run_program(PROGRAM, tmp_path)
    assert differences(folder) == [dict.fromkeys([*SHAPES, *LARGER], 0.0)] * ROUNDS


@pytest.mark.parametrize("when", FAILURES)
def test_a_sender_is_told_why_an_engine_refuses(when, shared_memory):
    """Closing the shared memory, of which the traceback holds a part, fails after it."""
    assert json.loads((shared_memory / "raised.json").read_text())[when] == (
        "the engine can't take the trainer's weights: ValueError: a weight of 3 into a parameter of 0"
    )
