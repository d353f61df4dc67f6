"""The interface of a role's reward: one response in, one outcome out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import ClassVar

from marsrl_verl.core.types import FinishReason, Outcome, Problem, Sample, StageInput


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Everything a role's reward may look at."""

    sample_id: str
    role: str
    stage: str
    problem: Problem
    text: str
    """The whole decoded response."""
    final_text: str
    """The text after the thinking part; empty when there is none."""
    finish_reason: FinishReason
    solution: str | None = None
    """The solution that was judged or repaired."""
    solution_reward: float | None = None
    """Its reward: the Verifier's ground truth."""

    @classmethod
    def of(cls, stage_input: StageInput, sample: Sample) -> ScoreRequest:
        """The request for one sample of a stage input."""
        return cls(
            sample_id=sample.sample_id,
            role=stage_input.role,
            stage=stage_input.stage,
            problem=stage_input.problem,
            text=sample.text,
            final_text=sample.final_text,
            finish_reason=sample.finish_reason,
            solution=stage_input.solution,
            solution_reward=stage_input.solution_reward,
        )


class RoleReward(ABC):
    """Scores the responses of one role.

    A subclass takes its settings as keyword arguments (`marsrl.reward.<role>.kwargs`). It is
    constructed once in the launcher, as a check, and once in every reward worker. `score` may be an
    ordinary method, which is called from several threads at a time, or a coroutine. A sample on which it
    raises or takes longer than `marsrl.reward.<role>.timeout_s` is recorded with reward 0 and the error, and
    not trained.
    """

    pays_unfinished: ClassVar[bool] = False
    """Whether a response that the model did not end itself keeps the reward that `score` gives it. The
    papers give 0 (MarsRL, arXiv 2511.11373, §3.2)."""

    @abstractmethod
    def score(self, request: ScoreRequest) -> Outcome | Awaitable[Outcome]:
        """Score one response."""

    def longest_s(self, calls: int) -> float | None:
        """Most seconds of one call while there are `calls` at a time, where the reward itself ends calls that
        take too long; waiting for the others is part of it. A shorter `marsrl.reward.<role>.timeout_s` is
        raised to it. None: the reward has no limits of its own.
        """
        return None

    def close(self) -> None:  # noqa: B027 — most rewards hold nothing
        """Release what the reward holds (processes, connections)."""
