"""The interface of a role's reward: one response in, one result out. The base of rewards for an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.rewards.extraction import references


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Everything a role's reward may look at."""

    trajectory_id: str
    role: str
    stage: str
    problem: Problem
    text: str
    """The whole decoded response."""
    final_text: str
    """The text after the thinking part; empty when there is none."""
    finish_reason: FinishReason
    inputs: Mapping[str, Plain] = field(default_factory=dict)
    """Inputs that the method gave with the rollout request, such as a text that is judged and its reward."""
    detail: str | None = None
    """Why the trajectory has no regular end (`turn_limit`), as its workflow says."""
    events: Sequence[Mapping[str, Plain]] = ()
    """Events in it (tool calls, turns): the text alone may claim calls that were never made."""

    sampled_text: str | None = None
    """Part of `text` that the policy sampled itself, where tools or templates wrote in it too."""

    @property
    def own_text(self) -> str:
        """Text that the policy sampled itself."""
        return self.text if self.sampled_text is None else self.sampled_text

    @classmethod
    def of(cls, request: RolloutRequest, one: Trajectory, sampled_text: str | None = None) -> ScoreRequest:
        """The request for one trajectory of a rollout request."""
        return cls(
            trajectory_id=one.trajectory_id,
            role=request.role,
            stage=request.stage,
            problem=request.problem,
            text=one.text,
            final_text=one.final_text,
            finish_reason=one.finish,
            inputs=request.inputs,
            detail=one.detail,
            events=one.events,
            sampled_text=sampled_text,
        )


class UngradableError(ValueError):
    """A reward can grade no answer to a problem.

    Args:
        what: why, in the same words for all such problems.
        fix: what to do.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}: {fix}")
        self.what, self.fix = what, fix


class ServiceError(RuntimeError):
    """A service that a reward calls, such as a model behind an endpoint, gave no answer. The grade fails, as
    it does when it takes too long, and counts in `marsrl.reward.<role>.max_unanswered_frac`."""


class RoleReward(ABC):
    """Scores the responses of one role.

    A subclass takes its settings as keyword arguments (`marsrl.reward.<role>.kwargs`). It is
    constructed once in the launcher, as a check, and once in every reward worker. `score` may be an
    ordinary method, which is called from several threads at a time, or a coroutine. A trajectory on which it
    raises or takes longer than `marsrl.reward.<role>.timeout_s` is recorded with reward 0 and the error, and
    not trained. Where it raises often the run ends (`marsrl.reward.<role>.max_failed_frac`); for a service
    that does not answer it raises a `ServiceError`.
    """

    pays_unfinished: ClassVar[bool] = False
    """True if a response that the model did not end itself keeps the reward that `score` gives it. The papers
    give 0 (MarsRL, arXiv 2511.11373, §3.2)."""
    graded_ability: str | None = None
    """The one kind of problem that it grades (`Problem.ability`): the start warns of rows that name another.
    None: any."""
    tells_answer: bool = False
    """True if results of `score` have the answer as `info["answer"]` where a response has one, as is required
    to count equal answers (`marsrl.algo.plan_reward=consistency`)."""

    @abstractmethod
    def score(self, request: ScoreRequest) -> RewardResult | Awaitable[RewardResult]:
        """Scores one response."""

    def check_problem(self, problem: Problem) -> None:  # noqa: B027 — most rewards grade every problem
        """Looks at a problem of the data before a run starts.

        Raises:
            UngradableError: no answer to it can be graded.
        """

    def longest_s(self, calls: int) -> float | None:
        """Most seconds of one call while there are `calls` at a time, where the reward itself ends calls that
        take too long; waiting for the others is part of it. A shorter `marsrl.reward.<role>.timeout_s` is
        raised to it. None: the reward has no limits of its own.
        """
        return None

    def close(self) -> None:  # noqa: B027 — most rewards hold nothing
        """Releases what the reward holds (processes, connections)."""


def accepted_answers(problem: Problem) -> list[str]:
    """The references in its ground truth (`extraction.references`).

    Raises:
        ValueError: there is none.
    """
    accepted = references(problem.ground_truth)
    if not accepted:
        raise ValueError(f"problem {problem.problem_id}: the ground truth is empty")
    return accepted


class AnswerReward(RoleReward):
    """1 when the final answer equals a reference, else 0 (MarsRL, arXiv 2511.11373, §3.2).

    A response that the model did not end itself (cut off, aborted) and one without a final text have
    reward 0 and are not looked at further. The ground truth is one reference or a JSON list of
    strings, of which any may be met. `grade` gives the answer that it found as `info["answer"]`; that is all
    where there is no reference (`Problem.has_reference`).
    """

    tells_answer = True

    def score(self, request: ScoreRequest) -> RewardResult:
        """Compares the final answer with the problem's ground truth."""
        if request.finish_reason is not FinishReason.STOP or not request.final_text.strip():
            return RewardResult(0.0)
        if not request.problem.has_reference:
            return replace(self.grade(request.final_text, []), value=0.0, graded=False)
        return self.grade(request.final_text, accepted_answers(request.problem))

    @abstractmethod
    def grade(self, final_text: str, references: list[str]) -> RewardResult:
        """Extract the final answer of a finished response and compare it with the references."""
