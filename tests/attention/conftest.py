"""Without a GPU the Triton kernels run in Triton's interpreter (tests/conftest.py)."""

from __future__ import annotations

import pytest
from triton_interpreter import INTERPRETED, VARIABLE


@pytest.fixture
def interpreter(monkeypatch):
    """Kernels run in the interpreter where there is no GPU."""
    if INTERPRETED:
        monkeypatch.setenv(VARIABLE, "1")
