"""Record golden traces: `python tests/golden/record.py [scenario …]`, all of them without a name."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # pytest's own, where this is run by hand

from drive_steps import GoldenRun
from scenarios import CHECKPOINTS, STEPS, Scenario
from trace_files import differences, rounded, write

DIFFERENCES_SHOWN = 10
Trace = dict[str, Any]

MODULES = ("scenarios", *(path.stem for path in sorted(Path(__file__).parent.glob("*_scenarios.py"))))
SCENARIOS: dict[str, Scenario] = {
    name: one for module in MODULES for name, one in import_module(module).SCENARIOS.items()
}


def trace(
    name: str, *, checkpoints: tuple[int, ...] = CHECKPOINTS, order_seed: int | None = 0
) -> dict[str, Any]:
    """The trace of a scenario, saved and loaded after the `checkpoints`."""
    run = GoldenRun(SCENARIOS[name], order_seed)
    steps = []
    for step in range(1, STEPS + 1):
        steps.append(run.take_step(last=step == STEPS))
        if step in checkpoints:
            run.reload()
    return rounded({"scenario": name, "steps": steps, "end": run.drop_rest()})


def check(expected: Trace, found: Trace) -> None:
    """Raises AssertionError with the first differences."""
    lines = list(islice(differences(expected, found), DIFFERENCES_SHOWN))
    assert not lines, "\n".join(lines)


def record(name: str) -> None:
    """Writes a scenario's trace, if neither checkpoints nor the order of completion change it."""
    found = trace(name)
    check(found, rounded(trace(name, checkpoints=(), order_seed=None)))
    path = write(found)
    rows = sum(len(step["rows"]) for step in found["steps"])
    print(f"{name}: {rows} rows, {path.stat().st_size / 1000:.0f} kB")


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(SCENARIOS))
    if unknown:
        sys.exit(f"unknown scenarios {unknown}; there are {', '.join(SCENARIOS)}")
    for name in names or SCENARIOS:
        record(name)


if __name__ == "__main__":
    main(sys.argv[1:])
