"""Settings for all tests."""

from __future__ import annotations

import triton_interpreter  # noqa: F401  (before any other test can import Triton)
from hypothesis import settings

# A busy machine is no failure: examples have no deadline.
settings.register_profile("marsrl", deadline=None)
settings.load_profile("marsrl")
