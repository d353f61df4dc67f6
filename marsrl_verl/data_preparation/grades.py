"""Grades of the start model's answers, and the file that makes a preparation resumable: grades are appended
problem by problem.

JSON lines. The first holds the settings that the answers depend on, each other one problem's grades.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from marsrl_verl.core.trajectory import FinishReason, Trajectory, is_correct
from marsrl_verl.data.rows import DataError
from marsrl_verl.reporting.files import to_json

FORMAT = 1
_AGAIN = "Remove the line; its problem is then answered again."
SKIPPED = (FinishReason.PROMPT_TOO_LONG.value, FinishReason.ERROR.value)
"""Finish reasons of problems that the model never got: prompt too long, or rejected by the template."""


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of one answer."""

    reward: float
    answer: str | None = None
    """The final answer that the grader extracted."""
    finish: str = FinishReason.STOP.value
    """Why the response ended (`FinishReason`)."""
    tokens: int | None = None
    """Length of the response; None where it isn't known."""
    error: str | None = None
    graded: bool = True
    """False where the grader itself or the workflow failed: the reward says nothing about the
    model."""

    @classmethod
    def of(cls, one: Trajectory) -> Grade:
        """The grade of a scored trajectory."""
        result = one.scored
        return cls(
            reward=result.value,
            answer=result.info.get("answer"),
            finish=one.finish.value,
            tokens=None if one.external else one.tokens,
            error=one.detail or result.error,
            graded=result.graded and one.failed_by is None,
        )


@dataclass(frozen=True, slots=True)
class ProblemGrades:
    """The grades of one problem's answers."""

    key: str
    """The problem's hash (`problem_key`)."""
    grades: tuple[Grade, ...]
    question: str = ""
    ground_truth: str = ""
    """Reference that the answers were compared with."""
    responses: tuple[str, ...] = ()
    """The responses, where they are kept."""

    @property
    def passes(self) -> int:
        """Right answers."""
        return sum(is_correct(grade.reward) for grade in self.grades)

    @property
    def graded(self) -> int:
        """Answers that neither grader nor workflow failed on."""
        return sum(grade.graded for grade in self.grades)

    @property
    def ungraded(self) -> bool:
        """True if grader or workflow failed on all answers, so that there is no pass rate."""
        return self.graded == 0

    @property
    def pass_rate(self) -> float:
        """Share of right answers among those that are graded; cut off ones count as wrong."""
        return self.passes / self.graded

    @property
    def skipped(self) -> str | None:
        """Why the model never got it (prompt too long, rejected by the chat template); None if it did."""
        reasons = {grade.finish for grade in self.grades if grade.graded}
        return reasons.pop() if len(reasons) == 1 and reasons <= set(SKIPPED) else None

    def to_json(self) -> dict[str, Any]:
        """A line of the log."""
        line: dict[str, Any] = {
            "problem": self.key,
            "question": self.question,
            "ground_truth": self.ground_truth,
            "grades": [asdict(grade) for grade in self.grades],
        }
        return line | ({"responses": list(self.responses)} if self.responses else {})

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> ProblemGrades:
        """The grades of a line of the log; KeyError, TypeError or ValueError: it is none."""
        grades = tuple(
            Grade(**grade) if isinstance(grade, dict) else Grade(float(grade)) for grade in line["grades"]
        )
        if not grades:
            raise ValueError("there are no grades")
        return cls(
            key=line["problem"],
            grades=grades,
            question=line.get("question", ""),
            ground_truth=line.get("ground_truth", ""),
            responses=tuple(line.get("responses", ())),
        )


class GradeLog(AbstractContextManager["GradeLog"]):
    """An open log, of one process at a time: made where there is none, continued where there is one.

    Args:
        settings: what the answers depend on, JSON-able values by name.

    Raises:
        DataError: the file was made with other settings, is damaged, or is in use.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = json.loads(to_json(dict(settings)))
        self.grades: dict[str, ProblemGrades] = {}
        """Known grades, by problem."""
        self.dropped_tail = False
        """True if an unfinished last line was removed: the process was killed while it wrote."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            self._lock()
            self._load()
        except BaseException:
            self._file.close()
            raise

    def append(self, *some: ProblemGrades) -> None:
        """Adds problems; they are in the file when this returns."""
        for grades in some:
            self._write(grades.to_json())
            self.grades[grades.key] = grades

    def __exit__(self, *_: object) -> None:
        self._file.close()

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
