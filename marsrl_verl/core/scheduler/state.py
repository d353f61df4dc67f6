"""The scheduler's state between two calls, its form in a checkpoint, and the result of a finished step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marsrl_verl.core.group import Group
from marsrl_verl.core.own_memory import Copies
from marsrl_verl.core.request import Problem, RolloutRequest, problem_from_plain, problem_to_plain
from marsrl_verl.core.sequence import Plain, plain_fields
from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.core.trajectory import RolloutOutput, Trajectory

_NUMBERS = ("step", "open", "round_taken", "next_order", "stale")
"""Fields of `SchedulerState` that a checkpoint holds as they are."""


@dataclass(slots=True)
class ProblemState:
    """A problem on its way through the stages."""

    problem: Problem
    order: int
    """Running number of arrival."""
    stage: str
    requests: dict[str, RolloutRequest] = field(default_factory=dict)
    """Requests of the current stage by group id, in the order in which the method gave them."""
    done: dict[str, Group] = field(default_factory=dict)
    """Complete groups of the current stage by group id."""
    dropped: bool = False
    """If true, its waiting requests were dropped; it ends when those in flight have come back."""
    passed: list[Group] = field(default_factory=list)
    """Groups of earlier stages, where the method trains problems."""
    begins: bool = True
    """If true, it is at the stage where it began, which need not be the method's first one."""

    @property
    def complete(self) -> bool:
        """True if every group of the current stage is complete."""
        return len(self.done) == len(self.requests)

    def groups(self) -> list[Group]:
        """The complete groups of the current stage by group id."""
        return [self.done[group_id] for group_id in sorted(self.done)]


@dataclass(slots=True)
class PendingGroup:
    """A group that was begun and is not complete."""

    members: dict[int, Trajectory] = field(default_factory=dict)
    """Its trajectories so far by number: ended ones, and those that are paused."""
    state: Plain = None
    """State that its workflow keeps of the group itself."""
    in_flight: bool = True
    """If true, a round of it is being decoded."""
    trained: set[str] = field(default_factory=set)
    """Ids of trajectories that were handed out for training already."""

    def ended(self) -> list[Trajectory]:
        """The trajectories that have ended, by number."""
        return [self.members[k] for k in sorted(self.members) if not self.members[k].paused]

    def paused(self) -> list[Trajectory]:
        """The trajectories that are to be continued, by number."""
        return [self.members[k] for k in sorted(self.members) if self.members[k].paused]

    def output(self, group_id: str) -> RolloutOutput:
        """Output with which its workflow goes on: paused members whole, ended ones without tokens and
        texts, which are not read again and would be sent in every round."""
        members = [self.members[k] for k in sorted(self.members)]
        light = [one if one.paused else replace(one, sequences=[], text="", final_text="") for one in members]
        return RolloutOutput(group_id, light, self.state)


@dataclass(slots=True)
class SchedulerState:
    """Everything that a checkpoint must hold for the same steps to follow."""

    step: int | None = None
    """The last step that was started."""
    open: bool = False
    """If true, that step has not been finished yet."""
    round_taken: bool = False
    """If true, its generation round was dispatched (pipelined)."""
    next_order: int = 0
    problems: dict[str, ProblemState] = field(default_factory=dict)
    """Problems on their way, by problem id."""
    ready_step: dict[str, int] = field(default_factory=dict)
    """Waiting requests: group id -> first step in which they may be decoded."""
    pending: dict[str, PendingGroup] = field(default_factory=dict)
    """Groups that were begun and are not complete, by group id."""
    problem_of: dict[str, str] = field(default_factory=dict)
    """Group id -> problem id, for every request of a current stage."""
    completed: list[Group] = field(default_factory=list)
    """Groups that completed in the open step, see `StepResult.completed`."""
    deferred: list[Group] = field(default_factory=list)
    """Groups to train that wait for others, so that an update is not too small."""
    stale: int = 0
    """Requests that were dropped in the open step, because they had waited too long."""
    ended: list[Ended] = field(default_factory=list)
    """Problems that left since the last `finish_step`."""

    def request(self, group_id: str) -> RolloutRequest:
        """The request of a group of a current stage."""
        return self.problems[self.problem_of[group_id]].requests[group_id]

    def own_arrays(self) -> None:
        """Copies all kept arrays whose memory others manage (`core.own_memory`), at the end of a step."""
        copies = Copies()
        for pending in self.pending.values():
            copies.take(pending.members.values())
            pending.state = copies.plain(pending.state)
        for group in self.deferred:
            copies.take(group.trajectories)
        for one in self.problems.values():
            for group in [*one.done.values(), *one.passed]:
                copies.take(group.trajectories)
            for name, request in one.requests.items():
                if request.prefix is not None:
                    one.requests[name] = replace(request, prefix=copies.sequence(request.prefix))

    def to_plain(self) -> dict[str, Any]:
        """Dictionaries, lists, strings, numbers and arrays. Every problem and every group is written once."""
        # A deferred part of a group and the whole group may be there at once, so deferred groups stand apart.
        groups = {group.group_id: group for group in self.completed}
        for one in self.problems.values():
            groups.update(one.done)
            groups.update({group.group_id: group for group in one.passed})
        requests = {name: item for one in self.problems.values() for name, item in one.requests.items()}
        for group in [*groups.values(), *self.deferred]:
            requests.setdefault(group.group_id, group.request)
        problems = {item.problem.problem_id: item.problem for item in requests.values()}
        problems.update({name: one.problem for name, one in self.problems.items()})
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "problems": [problem_to_plain(problem) for problem in problems.values()],
            "requests": [item.to_plain() for item in requests.values()],
            "groups": {group_id: group.to_plain() for group_id, group in groups.items()},
            "deferred": [[group.group_id, group.to_plain()] for group in self.deferred],
            "states": [_problem_state_to_plain(one) for one in self.problems.values()],
            "ready_step": dict(self.ready_step),
            "pending": {group_id: _pending_to_plain(one) for group_id, one in self.pending.items()},
            "completed": [group.group_id for group in self.completed],
            "ended": [[end.problem_id, end.stage, end.reason.value] for end in self.ended],
        }

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> SchedulerState:
        """The inverse of `to_plain`."""
        problems = {plain["problem_id"]: problem_from_plain(plain) for plain in data["problems"]}
        requests = {
            plain["group_id"]: RolloutRequest.from_plain(plain, problems) for plain in data["requests"]
        }
        groups = {name: Group.from_plain(plain, requests[name]) for name, plain in data["groups"].items()}
        states = {
            plain["problem"]: ProblemState(
                problem=problems[plain["problem"]],
                order=plain["order"],
                stage=plain["stage"],
                requests={name: requests[name] for name in plain["requests"]},
                done={name: groups[name] for name in plain["done"]},
                dropped=plain["dropped"],
                passed=[groups[name] for name in plain["passed"]],
                begins=plain["begins"],
            )
            for plain in data["states"]
        }
        return cls(
            **{name: data[name] for name in _NUMBERS},
            problems=states,
            ready_step=dict(data["ready_step"]),
            pending={name: _pending_from_plain(plain) for name, plain in data["pending"].items()},
            problem_of={name: problem for problem, one in states.items() for name in one.requests},
            completed=[groups[name] for name in data["completed"]],
            deferred=[Group.from_plain(plain, requests[name]) for name, plain in data["deferred"]],
            ended=[Ended(name, stage, EndReason(reason)) for name, stage, reason in data["ended"]],
        )


@dataclass(slots=True)
class StepResult:
    """Results of one training step; every list is sorted by id."""

    step: int
    trained: list[Group]
    """Groups that enter the loss: complete ones, with `min_group` also parts. `trained_before` names the
    trajectories that entered an earlier loss."""
    completed: list[Group]
    """All groups that completed in this step; where the end of a problem rewards a group
    (`Stage.deferred_reward`), those of the problems that ended in it. Without a reward only where a problem
    ended early: dropped, stale, rejected."""
    ended: list[Ended]
    """Problems that left in this step."""
    waiting: dict[str, int]
    """Requests that wait for a coming round, by stage (every stage is listed)."""
    in_flight: int
    """Groups that were begun and are not complete."""
    paused: int
    """Trajectories that wait for their next round."""
    deferred: int
    """Groups to train that wait until there are enough for an update."""
    stale: int
    """Requests that were dropped in this step, because they had waited too long."""
    oldest_waiting: dict[str, int]
    """Age in steps of the oldest waiting request, by stage; 0 where none waits."""
    request_ages: dict[str, float]
    """Mean age in steps of the requests of the completed groups, by stage with such groups: the age of the
    text that the newest weights answered. Groups that are rewarded later are left out."""

    @classmethod
    def of(
        cls,
        state: SchedulerState,
        stages: Sequence[str],
        trained: list[Group],
        completed: list[Group],
        waiting: list[RolloutRequest],
        deferred_reward: Callable[[Group], bool],
    ) -> StepResult:
        """The result of the open step of `state`, before it is closed. `deferred_reward` is true for groups
        that get their rewards at the end of their problem."""
        step = state.step or 0
        ages: dict[str, list[int]] = {}
        for group in completed:
            if not deferred_reward(group):
                ages.setdefault(group.request.stage, []).append(step - group.request.created_step)
        waits = {name: [step - one.created_step for one in waiting if one.stage == name] for name in stages}
        return cls(
            step=step,
            trained=trained,
            completed=completed,
            ended=sorted(state.ended, key=lambda end: end.problem_id),
            waiting={name: len(found) for name, found in waits.items()},
            in_flight=len(state.pending),
            paused=sum(len(one.paused()) for one in state.pending.values()),
            deferred=len(state.deferred),
            stale=state.stale,
            oldest_waiting={name: max(found, default=0) for name, found in waits.items()},
            request_ages={name: sum(values) / len(values) for name, values in ages.items()},
        )


def _problem_state_to_plain(one: ProblemState) -> dict[str, Any]:
    return {
        **plain_fields(one),
        "problem": one.problem.problem_id,
        "requests": list(one.requests),
        "done": list(one.done),
        "passed": [group.group_id for group in one.passed],
    }


def _pending_to_plain(one: PendingGroup) -> dict[str, Any]:
    members = [one.members[k].to_plain() for k in sorted(one.members)]
    return {**plain_fields(one), "members": members, "trained": sorted(one.trained)}


def _pending_from_plain(data: dict[str, Any]) -> PendingGroup:
    members = {one.number: one for one in map(Trajectory.from_plain, data["members"])}
    return PendingGroup(**{**data, "members": members, "trained": set(data["trained"])})
