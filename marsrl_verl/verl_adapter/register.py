"""What every verl process imports from us: the `verl.plugins` entry point.

verl logs a failing entry point at DEBUG only, so the launcher names this module in
`VERL_USE_EXTERNAL_MODULES` as well, where an error is raised.
"""

from __future__ import annotations

import os

PLATFORM_VARIABLE = "VERL_PLATFORM"
CPU_PLATFORM = "cpu"


def on_cpu_platform() -> bool:
    """Whether this process belongs to a run on the CPU platform."""
    return os.environ.get(PLATFORM_VARIABLE, "").strip().lower() == CPU_PLATFORM


if on_cpu_platform():
    from marsrl_verl.verl_adapter.cpu import platform as _platform  # noqa: F401  (registers itself)
