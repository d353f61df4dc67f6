"""Latency and throughput of the Python tool's sandboxes.

    python -m benchmarks.python_tool
    python -m benchmarks.python_tool --isolation namespaces landlock --calls 500 --json rows.json

Calls go through the toolbox, as a rollout's do. `one at a time` begins a call when the one before has
ended; `paced` leaves a pause in between, as a rollout does in which the model writes; the others keep so many
calls under way. A latency is the whole call's by the caller's clock: waiting, execution, reading.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.record import machine, options, write_json
from benchmarks.tables import table
from marsrl_verl.tools.base import ToolCall, ToolOutcome, ToolUnavailableError
from marsrl_verl.tools.python.config import Isolation, PythonConfig
from marsrl_verl.tools.python.tool import PythonTool
from marsrl_verl.tools.toolbox import Toolbox

PROGRAMS = {
    "arithmetic": "print(sum(k * k for k in range(1000)))",
    "numpy": "import numpy as np\nprint(np.linalg.det(np.arange(9.0).reshape(3, 3) + np.eye(3)))",
    "sympy": "import sympy as s\nx = s.symbols('x')\nprint(s.factor(x**4 - 1))",
}
PACE_S = 0.1
AT_A_TIME = (1, 4)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured series of calls."""

    isolation: str
    program: str
    load: str
    calls: int
    p50_ms: float
    p95_ms: float
    calls_per_s: float


async def measure(isolation: Isolation, calls: int) -> list[Row]:
    """All programs and loads at one kind of isolation.

    Raises:
        ToolUnavailableError: this machine does not offer it.
    """
    config = PythonConfig(target="python", isolation=isolation, min_isolation=Isolation.SECCOMP)
    tool = PythonTool.from_settings("python", config, seed=1, secrets={})
    box, rows = Toolbox([(tool, config)]), []
    await box.start()
    try:
        for name, code in PROGRAMS.items():
            await _series(box, code, min(calls, 10), 1, 0.0)
            rows.append(_row(isolation, name, "paced", *await _series(box, code, calls // 4, 1, PACE_S)))
            for at_a_time in AT_A_TIME:
                load = "one at a time" if at_a_time == 1 else f"{at_a_time} at a time"
                rows.append(_row(isolation, name, load, *await _series(box, code, calls, at_a_time, 0.0)))
    finally:
        await box.close()
    return rows


async def _series(
    box: Toolbox, code: str, calls: int, at_a_time: int, pause_s: float
) -> tuple[list[float], float]:
    """Latencies, and the seconds of the whole series without its pauses."""
    numbers, latencies, paused = iter(range(calls)), [], 0.0
    began = time.perf_counter()

    async def caller() -> None:
        nonlocal paused
        for number in numbers:
            started = time.perf_counter()
            result = await box.call(ToolCall("python", {"code": code}, f"bench/{number}"))
            latencies.append(time.perf_counter() - started)
            if result.outcome is not ToolOutcome.OK:
                raise RuntimeError(f"a call ended with {result.outcome}: {result.text} {result.info}")
            if pause_s:
                paused += pause_s
                await asyncio.sleep(pause_s)

    await asyncio.gather(*[caller() for _ in range(at_a_time)])
    return latencies, time.perf_counter() - began - paused


def _row(isolation: Isolation, program: str, load: str, latencies: Sequence[float], seconds: float) -> Row:
    parts = statistics.quantiles(latencies, n=20, method="inclusive")
    p50, p95 = 1000 * parts[9], 1000 * parts[18]
    return Row(str(isolation), program, load, len(latencies), p50, p95, len(latencies) / seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, and writes the rows if asked."""
    parser = options(__doc__)
    names = [str(one) for one in Isolation]
    parser.add_argument("--isolation", nargs="+", choices=names, default=names, help="which kinds")
    parser.add_argument("--calls", type=int, default=200, help="calls of a series (200)")
    parsed = parser.parse_args(arguments)
    print(machine() + "\n", flush=True)
    rows: list[Row] = []
    for name in parsed.isolation:
        try:
            rows += asyncio.run(measure(Isolation(name), parsed.calls))
        except ToolUnavailableError as error:
            print(f"{name}: {error}")
    head = ["isolation", "program", "load", "calls", "p50, ms", "p95, ms", "calls per s"]
    print(table(head, [_cells(one) for one in rows]))
    write_json(parsed.json, [asdict(one) for one in rows])
    return 0


def _cells(one: Row) -> list[str]:
    figures = [f"{value:.1f}" for value in (one.p50_ms, one.p95_ms, one.calls_per_s)]
    return [one.isolation, one.program, one.load, str(one.calls), *figures]


if __name__ == "__main__":
    raise SystemExit(main())
