"""Keeps verl's own functions in this process."""

from __future__ import annotations

import pkgutil

import pytest

from marsrl_verl.machine.packages import installed

REPLACED = (
    "verl.utils.seqlen_balancing.karmarkar_karp",
    "verl.utils.tensordict_utils.index_select_tensor_dict",
)
"""Functions that a worker of ours replaces in its process."""


@pytest.fixture(scope="session", autouse=True)
def _verls_functions():
    """verl's own functions, found before any worker is built."""
    return {name: pkgutil.resolve_name(name) for name in REPLACED} if installed("verl") else {}


@pytest.fixture(autouse=True)
def _verls_own_functions(monkeypatch, _verls_functions):
    """A test that builds a worker, or a fixture of its file, leaves verl as it was for the next."""
    for name, function in _verls_functions.items():
        monkeypatch.setattr(name, function)
