"""The six calls, in their order."""

from __future__ import annotations

import importlib

from benchmarks.gpu_check.checks import Call

NUMBERS = (1, 2, 3, 4, 5, 6)


def load(number: int) -> Call:
    """A call; its module is imported now."""
    call = importlib.import_module(f"benchmarks.gpu_check.call_{number}").CALL
    assert isinstance(call, Call)
    return call
