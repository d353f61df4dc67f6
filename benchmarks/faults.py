"""Faults on real Ray, FSDP2 and vLLM, several times in a row: the tests that make them, and what each did.

    python -m benchmarks.faults --json rows.json
    python -m benchmarks.faults --repeat 1 --only lost_runs

Every repetition runs the end-to-end tests of faults (`tests/e2e/test_faults.py`, `test_lost_runs.py`), which
check what a run says and keeps, and those of the Python tool's sandboxes (`tests/tools`). For each fault the
table has the run's exit status, the seconds from the fault to its end (of spoiled weights: from its start) in
every repetition, and its sentence.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.record import HERE, machine, options, write_json
from benchmarks.tables import table

RECORD = "MARSRL_FAULTS"
GROUPS = {
    "faults": ["-m", "e2e", "tests/e2e/test_faults.py", "-k", "after_every_fault or dies_or_hangs"],
    "lost_runs": ["-m", "e2e", "tests/e2e/test_lost_runs.py"],
    "hung sandbox server": ["tests/tools/test_python_tool.py", "-k", "server"],
    "hostile programs": ["tests/tools/test_hostile_programs.py"],
    "limits of sandboxes": ["tests/tools/test_sandbox_usage.py", "tests/tools/test_sandbox_supervisor.py"],
}
"""Arguments of pytest."""
_FOLDER = re.compile(r"/[^\s\"]*(?:pytest-\d+/|/session_[^/]*/)")
"""Folders of runs and of Ray's logs: others in every repetition."""


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=tuple(GROUPS), help="one group of tests")
    arguments = parser.parse_args()
    where = machine()
    print(where, flush=True)
    groups = {name: GROUPS[name] for name in GROUPS if arguments.only in (None, name)}
    runs: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for repetition in range(1, arguments.repeat + 1):
            for name, tests in groups.items():
                record = Path(folder, f"{repetition}-{name}.jsonl")
                began = time.monotonic()
                done = subprocess.run(
                    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
                    cwd=HERE,
                    env={**os.environ, RECORD: str(record)},
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=3600,
                )
                lines = done.stdout.strip().splitlines()
                run = {"group": name, "repetition": repetition, "status": done.returncode}
                run |= {"seconds": round(time.monotonic() - began, 1), "said": lines[-1] if lines else ""}
                print(f"{repetition} {name}: {run['said']}", flush=True)
                if done.returncode != 0:
                    print(done.stdout[-4000:] + done.stderr[-2000:], flush=True)
                runs.append(run)
                if record.exists():
                    each = (json.loads(line) for line in _FOLDER.sub("…/", record.read_text()).splitlines())
                    rows += [{"group": name, "repetition": repetition, **row} for row in each]
    write_json(arguments.json, {"machine": where.splitlines(), "tests": runs, "faults": rows})
    print("\n" + tests_table(runs) + "\n\n" + faults_table(rows))
    return int(any(run["status"] != 0 for run in runs))


def tests_table(runs: list[dict[str, Any]]) -> str:
    """The tests of each group: what they said in every repetition."""
    said = defaultdict(list)
    for run in runs:
        said[run["group"]].append(run["said"])
    return table(["tests", "each time"], [[name, "; ".join(each)] for name, each in said.items()])


def faults_table(rows: list[dict[str, Any]]) -> str:
    """Each fault's seconds and status in every repetition, and the sentence of the last one."""
    by_fault = defaultdict(list)
    for row in rows:
        by_fault[row["fault"]].append(row)
    lines = [
        [
            fault,
            ", ".join(f"{row['seconds']:.0f}" for row in each),
            ", ".join(str(row["status"]) for row in each),
            each[-1]["said"][-1] if each[-1]["said"] else "–",
        ]
        for fault, each in by_fault.items()
    ]
    return table(["fault", "seconds", "exit status", "what it says"], lines)


if __name__ == "__main__":
    sys.exit(main())
