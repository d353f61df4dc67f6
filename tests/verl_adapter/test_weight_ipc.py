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


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--shared-memory",), set(SHAPES)),
        pytest.param((), {*SHAPES, *LARGER}, marks=pytest.mark.gpu),
    ],
    ids=["shared memory", "cuda ipc"],
)
def test_every_weight_arrives_unchanged_in_every_round(tmp_path, arguments, names):
    run_program(Path(ipc_weights.__file__), tmp_path, *arguments)
    rounds = json.loads((tmp_path / "received.json").read_text())
    assert len(rounds) == ROUNDS
    for one in rounds:
        assert one["missing"] == []
        assert one["differences"] == dict.fromkeys(names, 0.0)


@pytest.mark.parametrize("when", FAILURES)
def test_a_sender_is_told_why_an_engine_refuses(when, tmp_path):
    """Closing the shared memory, of which the traceback holds a part, fails after it."""
    run_program(Path(ipc_weights.__file__), tmp_path, "--shared-memory", "--failing", when)
    assert json.loads((tmp_path / "raised.json").read_text()) == (
        "the engine can't take the trainer's weights: ValueError: a weight of 3 into a parameter of 0"
    )
