"""Plugin module that every verl process imports: the `verl.plugins` entry point.

verl logs a failing entry point at DEBUG only, so the launcher names this module in
`VERL_USE_EXTERNAL_MODULES` as well, where an error is raised. Import it for its effect only, and
only where `VERL_PLATFORM` is already set.
"""

from __future__ import annotations

from marsrl_verl.verl_adapter.loopback import keep_stores_on_loopback
from marsrl_verl.verl_adapter.platform_choice import on_cpu_platform

# Here and not in our workers: verl has processes with stores that none of our classes is in.
keep_stores_on_loopback()

if on_cpu_platform():
    from marsrl_verl.verl_adapter.cpu import platform as _platform  # noqa: F401  (registers itself)
