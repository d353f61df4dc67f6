"""Start Ray as a training run does and measure in the driver's place.

    python -m benchmarks.throughput.start_plugin

A module of its own: verl is imported when the environment is prepared, not before.
"""

from __future__ import annotations

import sys

from benchmarks.throughput.plan import Plan
from marsrl_verl.verl_adapter.run.launch import run

if __name__ == "__main__":
    sys.exit(run(Plan.read().config(), work="benchmarks.throughput.plugin:measure"))
