"""Keeps verl's own functions in this process."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version

import pytest


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


REPLACED = {
    "verl.utils.seqlen_balancing": "karmarkar_karp",
    "verl.utils.tensordict_utils": "index_select_tensor_dict",
}
"""Functions that a worker of ours replaces in its process."""


@pytest.fixture(scope="session", autouse=True)
def _verls_functions():
    """verl's own functions, found before any worker is built."""
    if not _installed("verl"):
        return {}
    return {
        (module, name): getattr(importlib.import_module(module), name) for module, name in REPLACED.items()
    }


@pytest.fixture(autouse=True)
def _verls_own_functions(monkeypatch, _verls_functions):
    """A test that builds a worker, or a fixture of its file, leaves verl as it was for the next."""
    for (module, name), function in _verls_functions.items():
        monkeypatch.setattr(f"{module}.{name}", function)
