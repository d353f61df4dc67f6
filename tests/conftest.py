"""Settings for all tests."""

from __future__ import annotations

import sys

import pytest
import triton_interpreter  # noqa: F401  (before any other test can import Triton)
from hypothesis import settings

# A busy machine is no failure: examples have no deadline.
settings.register_profile("marsrl", deadline=None)
settings.load_profile("marsrl")


@pytest.fixture(autouse=True)
def _forget_modules_of_the_test(request):
    """A module that a test wrote into its folder and imported is not there for the next test."""
    folder = str(request.getfixturevalue("tmp_path")) if "tmp_path" in request.fixturenames else None
    yield
    if folder is not None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(folder):
                del sys.modules[name]
