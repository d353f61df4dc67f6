"""Writing files so that a reader never sees half of one, and beside the training: at the published size a
step's rollouts are gigabytes of JSON."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any


def write_atomic(path: Path, text: str) -> None:
    """Writes `text` to `path` through a temporary file beside it; an existing file is replaced whole."""
    write_lines_atomic(path, (text,))


def write_lines_atomic(path: Path, parts: Iterable[str]) -> None:
    """Like `write_atomic`, from parts that are written one after the other."""
    # Half of a surrogate pair has no encoding; written as `\ud800` it is one again for readers of JSON.
    write_bytes_parts_atomic(path, (part.encode(errors="backslashreplace") for part in parts))


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Like `write_atomic`, for bytes."""
    write_bytes_parts_atomic(path, (data,))


def write_bytes_parts_atomic(path: Path, parts: Iterable[bytes]) -> None:
    """Like `write_lines_atomic`, for bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """The first of `stem.1.suffix`, `stem.2.suffix`, … that does not exist."""
    number = 1
    while (path := folder / f"{stem}.{number}{suffix}").exists():
        number += 1
    return path


def write_json_atomic(path: Path, value: Any) -> None:
    """Writes an indented JSON file."""
    write_atomic(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON: a NaN or infinity becomes null, since JSON has no such number; numpy scalars and arrays
    become plain numbers and lists."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_listed)
    except ValueError:  # a NaN: looking at every number takes many times as long as writing it
        return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _listed(value: Any) -> Any:
    """Converts a value that `json` cannot write by itself."""
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def existing(path: Path) -> Path:
    """The nearest of a path and its parents that is there."""
    return next(place for place in (path, *path.absolute().parents) if place.exists())


def refusal(folder: Path) -> str | None:
    """Why nothing can be written in a folder, which need not be there yet; None: it can."""
    try:
        with tempfile.TemporaryFile(dir=existing(folder)):
            return None
    except OSError as error:
        return error.strerror


class BackgroundWriter:
    """Runs jobs one after the other, in their order, in a thread of its own.

    A job's error is raised by the next call of any method, and again by every later one: what was to be
    written is lost, and the run must not go on as if it were not.

    Args:
        max_waiting: jobs that may be unfinished; with more, `submit` waits for the oldest.
    """

    def __init__(self, max_waiting: int = 2) -> None:
        self._max_waiting = max_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="run-folder")
        self._jobs: deque[Future[object]] = deque()

    def submit(self, job: Callable[[], object]) -> None:
        """Has a job done. What it reads must not be changed any more."""
        self._reap(self._max_waiting - 1)
        self._jobs.append(self._thread.submit(job))

    def flush(self) -> None:
        """Waits until all jobs are done."""
        self._reap(0)

    def close(self) -> None:
        """Waits until all jobs are done, and ends the thread."""
        try:
            self.flush()
        finally:
            self._thread.shutdown(cancel_futures=True)

    def _reap(self, most: int) -> None:
        """Takes finished jobs off, and waits until at most so many are left; a failed one stays."""
        while self._jobs and (len(self._jobs) > most or self._jobs[0].done()):
            self._jobs[0].result()
            self._jobs.popleft()
