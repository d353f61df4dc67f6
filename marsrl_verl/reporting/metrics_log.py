"""`metrics.jsonl`: one line per training step, appended and flushed.

A line is `{"step": int, "metrics": {name: number}, "timings": {name: seconds}}`. Lines that a resumed run
makes obsolete, and a line that a killed run left half-written, move to `metrics.replaced.jsonl`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from marsrl_verl.reporting.files import to_json, write_lines_atomic

METRICS_FILE = "metrics.jsonl"
REPLACED_FILE = "metrics.replaced.jsonl"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One step's line; values that were not finite are None."""

    step: int
    metrics: dict[str, float | None]
    timings: dict[str, float | None]


class MetricsLog:
    """Appends to a folder's `metrics.jsonl`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / METRICS_FILE
        self.replaced_path = folder / REPLACED_FILE
        self._file: TextIO | None = None
        self._last_step: int | None = None

    def append(
        self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float] | None = None
    ) -> None:
        """Writes one line. Steps must increase; after a resume, `drop_after` comes first."""
        if self._file is None:
            lines = _split(self.path)[0]
            self.drop_after(None)
            self._last_step = json.loads(lines[-1])["step"] if lines else None
            self._file = self.path.open("a", encoding="utf-8")
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(
                f"{self.path}: metrics of step {step} come after those of step {self._last_step}; steps must "
                "increase. A resumed run rolls the folder back to its checkpoint's step first."
            )
        self._file.write(to_json({"step": step, "metrics": metrics, "timings": timings or {}}) + "\n")
        self._file.flush()
        self._last_step = step

    @property
    def deleted(self) -> bool:
        """True if the file that is written to has been deleted."""
        return self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0

    def drop_after(self, step: int | None) -> int:
        """Moves the lines of steps after `step` (None keeps every whole line), and a half-written last line,
        to `metrics.replaced.jsonl`. Returns the number of whole lines moved."""
        self.close()
        lines, fragment = _split(self.path)
        dropped = [line for line in lines if step is not None and json.loads(line)["step"] > step]
        if not dropped and not fragment:
            return 0
        with self.replaced_path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in [*dropped, *([fragment] if fragment else [])])
        remaining = [line for line in lines if line not in set(dropped)]
        write_lines_atomic(self.path, (f"{line}\n" for line in remaining))
        return len(dropped)

    def close(self) -> None:
        """Closes the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._last_step = None


def read_metrics(folder: Path) -> list[StepMetrics]:
    """All whole lines of a folder's `metrics.jsonl`, in order; empty when there is none."""
    return [StepMetrics(**json.loads(line)) for line in _split(folder / METRICS_FILE)[0]]


def _split(path: Path) -> tuple[list[str], str]:
    """Whole lines, and the unfinished rest after the last newline (empty when there is none)."""
    if not path.exists():
        return [], ""
    *lines, rest = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path}, line {number}: not JSON ({error}); repair or remove the line"
            ) from error
    return lines, rest
