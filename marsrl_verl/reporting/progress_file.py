"""Progress across processes: the trainer writes events into a file, the launcher shows them.

The training loop runs in a worker process of the cluster, where standard output is no terminal. It writes
to a `ProgressFile`; the launcher, which has the terminal, calls `ProgressFollower.poll` now and then.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marsrl_verl.reporting.files import to_json
from marsrl_verl.reporting.progress import ProgressSink, StepProgress


class ProgressFile:
    """A sink that appends each event as a JSON line `{"event": phase | step | message, …}`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def phase(self, name: str, detail: str = "") -> None:
        """Write a phase."""
        self._write({"event": "phase", "name": name, "detail": detail})

    def step(self, report: StepProgress) -> None:
        """Write a finished step."""
        self._write({"event": "step", **asdict(report)})

    def message(self, text: str) -> None:
        """Write a message."""
        self._write({"event": "message", "text": text})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(to_json(event) + "\n")
        self._file.flush()


class ProgressFollower:
    """Passes the events that are written to a file after this object's construction on to a sink."""

    def __init__(self, path: Path, sink: ProgressSink) -> None:
        self._path = path
        self._sink = sink
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def poll(self) -> int:
        """Pass on what is new; returns the number of events. A half-written line waits for its end."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._show(json.loads(line))
        return len(lines)

    def _show(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "phase":
            self._sink.phase(**event)
        elif kind == "step":
            self._sink.step(StepProgress(**event))
        elif kind == "message":
            self._sink.message(**event)
        else:
            raise ValueError(f"{self._path}: unknown event {kind!r}; known: phase, step, message")
