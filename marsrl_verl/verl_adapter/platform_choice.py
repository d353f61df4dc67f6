"""The platform that this process belongs to."""

from __future__ import annotations

import os

PLATFORM_VARIABLE = "VERL_PLATFORM"
CPU_PLATFORM = "cpu"


def on_cpu_platform() -> bool:
    """True if this process belongs to a run on the CPU platform."""
    return os.environ.get(PLATFORM_VARIABLE, "").strip().lower() == CPU_PLATFORM
