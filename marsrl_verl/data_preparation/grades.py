"""How often the start model solves a problem."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from marsrl_verl.core.trajectory import FinishReason, Trajectory, is_correct

SKIPPED = (FinishReason.PROMPT_TOO_LONG.value, FinishReason.ERROR.value)
"""Ends of problems that the model was never asked about: too long a prompt, or refused by the template."""


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
    """False where the grader itself or the rollout program failed: the reward says nothing about the
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
    """What the answers were compared with."""
    responses: tuple[str, ...] = ()
    """The responses, where they are kept."""

    @property
    def passes(self) -> int:
        """Right answers."""
        return sum(is_correct(grade.reward) for grade in self.grades)

    @property
    def graded(self) -> int:
        """Answers that neither grader nor rollout program failed on."""
        return sum(grade.graded for grade in self.grades)

    @property
    def ungraded(self) -> bool:
        """Whether all answers failed so, and there is no pass rate."""
        return self.graded == 0

    @property
    def pass_rate(self) -> float:
        """Share of right answers among those that are graded; cut off ones count as wrong."""
        return self.passes / self.graded

    @property
    def skipped(self) -> str | None:
        """Why the model was never asked (prompt too long, chat template refuses it); None if it was."""
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
        """A line of the log.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
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
