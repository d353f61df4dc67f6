"""Runs a call: check after check, whatever fails, within its minutes."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.checks import HERE, NO_DEVICE, NOT_INSTALLED, Call, Check, end_tree
from benchmarks.gpu_check.child import FAILED, PASSED, RESULT
from benchmarks.record import PACKAGES, commit, write_json
from benchmarks.tables import table
from marsrl_verl.machine.gpus import list_gpus, visible
from marsrl_verl.machine.packages import versions_of

_PACKAGES = (*PACKAGES, "tokenizers", "flash-attn", "cupy-cuda13x")
_WITHOUT_GPU = 10
"""Times as long as a check may take without a GPU, where nobody waits for one."""
_LEAST_SECONDS = 5
"""With less of a call's time left no check is started."""
_SHOWN = 160
"""Characters of a message in the table; the record has all."""


@dataclass
class Outcome:
    """What became of one check."""

    check: str
    result: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def cells(self) -> list[str]:
        figures = ", ".join(f"{name} {shown(value)}" for name, value in self.figures.items())
        error = " ".join(self.error.split())
        return [
            self.check,
            self.result,
            (figures + (": " if figures and error else "") + error[:_SHOWN]).replace("|", "/"),
            f"{self.seconds:.1f}",
        ]


def shown(value: Any) -> str:
    """A figure in the table."""
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def run_call(call: Call, folder: Path, only: str | None = None, patience: float = 1.0) -> list[Outcome]:
    """Runs a call's checks, prints their table and writes `FOLDER/call_N.json`.

    Args:
        folder: for records and logs.
        only: the one check that is run.
        patience: times as long as a call and its checks may take.
    """
    patience *= 1 if visible(list_gpus()) else _WITHOUT_GPU
    end = time.monotonic() + 60 * call.minutes * patience
    print(f"\nCall {call.number}: {call.title} (at most {patience * call.minutes:g} minutes)", flush=True)
    outcomes = []
    for check in call.checks:
        if only not in (None, check.name):
            continue
        budget = min(patience * check.seconds, end - time.monotonic())
        outcomes.append(run_check(call, check, folder / f"call_{call.number}", budget))
        print(f"  {outcomes[-1].result:<14} {check.name} ({outcomes[-1].seconds:.0f} s)", flush=True)
    print("\n" + table(["check", "result", "figures", "seconds"], [one.cells for one in outcomes]))
    if any(one.result not in (PASSED, NO_DEVICE, NOT_INSTALLED) for one in outcomes):
        print(f"A failure here is about: {call.teaches}. Logs: {folder}/call_{call.number}/*/log.txt")
    record = {
        "call": call.number,
        "title": call.title,
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        "commit": commit(),
        "devices": [asdict(one) for one in visible(list_gpus())] or NO_DEVICE,
        "versions": versions_of(_PACKAGES),
        "checks": [asdict(one) for one in outcomes],
    }
    write_json(folder / f"call_{call.number}.json", record)
    return outcomes


def run_check(call: Call, check: Check, folder: Path, budget: float) -> Outcome:
    """One check in a process of its own, which is ended with all its children after so many seconds."""
    if budget < _LEAST_SECONDS:
        return Outcome(check.name, "not reached", 0.0, error=f"the call's {call.minutes} minutes were over")
    own = folder / check.name.replace(" ", "_")
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.gpu_check.child", str(call.number), check.name, str(own)]
    start = time.monotonic()
    with (own / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            status: int | None = process.wait(budget)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                end_tree(process.pid)
                process.wait()
    seconds = time.monotonic() - start
    if (own / RESULT).exists():
        found = json.loads((own / RESULT).read_text())
        return Outcome(check.name, found["result"], seconds, found["figures"], found.get("error", ""))
    if status is None:
        return Outcome(check.name, "timed out", seconds, error=f"after {budget:.0f} s")
    end = (own / "log.txt").read_text(errors="replace")[-_SHOWN:]
    return Outcome(check.name, FAILED, seconds, error=f"its process ended with status {status}: …{end}")
