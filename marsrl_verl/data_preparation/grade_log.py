"""The file that makes a preparation resumable: grades are appended problem by problem.

JSON lines. The first holds the settings that the answers depend on, each other one problem's grades.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from marsrl_verl.data.rows import DataError
from marsrl_verl.data_preparation.grades import ProblemGrades
from marsrl_verl.reporting.files import to_json

FORMAT = 1
_AGAIN = "Remove the line; its problem is then answered again."


class GradeLog(AbstractContextManager["GradeLog"]):
    """An open log; one process at a time.

    Args:
        path: the file; made where there is none, continued where there is one.
        settings: what the answers depend on, JSON-able values by name.

    Raises:
        DataError: the file was made with other settings, is damaged, or is in use.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = json.loads(to_json(dict(settings)))
        self.grades: dict[str, ProblemGrades] = {}
        """What is known, by problem."""
        self.dropped_tail = False
        """Whether an unfinished last line was taken off: the process was killed while it wrote."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock()
            self._load()
        except BaseException:
            self._file.close()
            raise

    def append(self, grades: ProblemGrades) -> None:
        """Add one problem; it is in the file when this returns."""
        self._write(grades.to_json())
        self.grades[grades.key] = grades

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            what = f"{self.path}: another process writes into it."
            raise DataError(what, "Wait for it, or choose another --output.") from error

    def _load(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        complete, newline, tail = content.rpartition(b"\n")
        if tail:
            self.dropped_tail = True
            self._file.truncate(len(complete) + len(newline))
        lines = complete.split(b"\n") if newline else []
        if not lines:
            self._write({"format": FORMAT, "settings": self.settings})
            return
        self._check_settings(_parsed(self.path, 1, lines[0]))
        for number, line in enumerate(lines[1:], start=2):
            try:
                grades = ProblemGrades.from_json(_parsed(self.path, number, line))
            except (KeyError, TypeError, ValueError) as error:
                what = f"{self.path} line {number}: it holds no grades of a problem ({error})."
                raise DataError(what, _AGAIN) from error
            self.grades[grades.key] = grades

    def _check_settings(self, head: dict[str, Any]) -> None:
        before = head.get("settings")
        if head.get("format") != FORMAT or not isinstance(before, dict):
            what = f"{self.path} line 1: it holds no settings of format {FORMAT}."
            raise DataError(what, "Choose another --output, or remove the file.")
        changed = [
            f"{name} was {before.get(name)!r} and is {self.settings.get(name)!r}"
            for name in sorted({*before, *self.settings})
            if before.get(name) != self.settings.get(name)
        ]
        if changed:
            what = f"{self.path}: its grades were made with other settings: {'; '.join(changed)}."
            raise DataError(what, "Use the same settings to go on, or choose another --output.")

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(to_json(line).encode("utf-8", "surrogatepass") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise DataError(f"{path} line {number}: it is no JSON object.", _AGAIN)
    return data
