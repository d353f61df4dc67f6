"""One position in a method's course, and how problems leave it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.settings.choices import Choice


@dataclass(frozen=True, slots=True)
class Stage:
    """A position in a method's course and the most it can hold, for plan, checks, scheduler and trainer."""

    name: str
    role: str
    """The role that begins to answer."""
    group_size: int
    """Responses of a group."""
    groups_per_problem: int = 1
    """Upper bound: fewer where no output of the stage before is eligible as an input."""
    rollout: str | type = "single_call"
    """The workflow of its requests: a built-in one's name, a class, or `package.module:Class`."""
    writers: tuple[str, ...] = ()
    """Roles that write a response together, each a sequence of it; empty: `role` alone."""
    rows_per_response: int | None = None
    """Most sequences of a response that one step trains; None: one of each writer."""
    trained: bool = True
    """If true, its responses enter the loss."""
    deferred_reward: bool = False
    """If true, its trajectories may come back without a reward, which `Method.deferred_rewards` gives later.
    Where whole problems are trained, their groups are in the log and in the metrics of the step in which the
    problem ends."""
    next: tuple[str, ...] = ()
    """Stages that may follow; empty: a problem ends here."""

    @property
    def workflow(self) -> str:
        """`rollout` as a request names it."""
        if isinstance(self.rollout, str):
            return self.rollout
        return f"{self.rollout.__module__}:{self.rollout.__qualname__}"

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that write a response."""
        return self.writers or (self.role,)

    @property
    def max_rows(self) -> int:
        """Most sequences of a response that one step trains."""
        return len(self.roles) if self.rows_per_response is None else self.rows_per_response

    @property
    def samples_per_problem(self) -> int:
        """Most responses to one problem at this stage."""
        return self.groups_per_problem * self.group_size

    def written_by(self, frozen: Container[str]) -> tuple[str, ...]:
        """The roles that write its responses, without those whose policy is frozen."""
        return tuple(role for role in self.roles if role not in frozen)

    def request(
        self,
        problem: Problem,
        messages: tuple[Message, ...],
        step: int,
        slot: int | str = 0,
        *,
        n: int | None = None,
        **fields: Any,
    ) -> RolloutRequest:
        """A request of this stage.

        Args:
            problem: the problem that it is part of.
            messages: the chat that `role` answers.
            step: the training step in which it comes into being.
            slot: tells the requests of a problem at this stage apart; the same in every run.
            n: trajectories of the group; None: `group_size`.
            fields: further ones of `RolloutRequest`.
        """
        name = f"{problem.problem_id}/{self.name}/{slot}"
        size = self.group_size if n is None else n
        common: dict[str, Any] = {"rollout": self.workflow, "created_step": step, **fields}
        return RolloutRequest(name, problem, self.name, self.role, messages, size, **common)


class EndReason(Choice):
    """Why a problem leaves the scheduler."""

    FINISHED = "finished"
    """It passed a last stage."""
    NO_REQUESTS = "no_requests"
    """No output of its last stage was eligible for a next one."""
    SKIPPED = "skipped"
    """The method requests nothing for it: a prompt exceeds its role's limit (`Method.opening_prompts`)."""
    REJECTED = "rejected"
    """The method rejected it (`Method.next_requests` returned None)."""
    DROPPED = "dropped"
    """Its waiting requests were dropped."""
    STALE = "stale"
    """All requests of its stage had waited too long."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A problem that left the scheduler and the last stage at which it was."""

    problem_id: str
    stage: str
    reason: EndReason
