"""What the scheduler knows between two calls, and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from marsrl_verl.core.serialize import (
    input_from_plain,
    input_to_plain,
    problem_from_plain,
    problem_to_plain,
    sample_from_plain,
    sample_to_plain,
)
from marsrl_verl.core.types import Group, Problem, Sample, StageInput


class EndReason(str, Enum):
    """Why a problem leaves the scheduler."""

    FINISHED = "finished"
    """It passed the last stage."""
    NO_INPUTS = "no_inputs"
    """No output of its last stage was eligible for the next."""
    NOT_ASKED = "not_asked"
    """The method asks nothing about it: its prompt exceeds the first role's limit."""
    REJECTED = "rejected"
    """The method does not want to train on it."""
    DROPPED = "dropped"
    """Its waiting inputs were dropped."""
    STALE = "stale"
    """All inputs of its stage had waited too long."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A problem that left the scheduler and the last stage at which it was."""

    problem_id: str
    stage: str
    reason: EndReason


@dataclass(slots=True)
class Visit:
    """A problem on its way through the stages."""

    problem: Problem
    order: int
    """Running number of arrival."""
    stage_index: int = 0
    inputs: dict[str, StageInput] = field(default_factory=dict)
    """Inputs of the current stage by group id, in the order the method gave them."""
    done: dict[str, Group] = field(default_factory=dict)
    """Completed groups of the current stage by group id."""
    dropped: bool = False
    """Its waiting inputs were dropped; it ends when what is in flight has come back."""
    passed: list[Group] = field(default_factory=list)
    """Groups of earlier stages, where the method trains whole problems."""

    @property
    def complete(self) -> bool:
        """Whether every group of the current stage is complete."""
        return len(self.done) == len(self.inputs)

    def groups(self) -> list[Group]:
        """The completed groups of the current stage by group id."""
        return [self.done[group_id] for group_id in sorted(self.done)]


@dataclass(slots=True)
class SchedulerState:
    """Everything that a checkpoint must hold for the same steps to follow."""

    step: int | None = None
    """The last step that was started."""
    open: bool = False
    """Whether it has not been finished yet."""
    round_taken: bool = False
    """Whether its generation round was handed out (pipelined)."""
    next_order: int = 0
    visits: dict[str, Visit] = field(default_factory=dict)
    """By problem id."""
    ready_step: dict[str, int] = field(default_factory=dict)
    """Waiting inputs: group id -> first step in which it may be decoded."""
    arrived: dict[str, dict[int, Sample]] = field(default_factory=dict)
    """Inputs in flight: group id -> samples that ended, by their number k."""
    asked: dict[str, set[int]] = field(default_factory=dict)
    """Inputs in flight: group id -> numbers of the samples that are being decoded."""
    unfinished: dict[str, dict[int, Sample]] = field(default_factory=dict)
    """Group id -> samples that are to be continued, by their number k; they stay here while their next
    segment is decoded."""
    trained: dict[str, set[str]] = field(default_factory=dict)
    """Group id -> ids of samples that were handed out for training before the group completed."""
    owner: dict[str, str] = field(default_factory=dict)
    """Group id -> problem id, for every input of a current stage."""
    completed: list[Group] = field(default_factory=list)
    """Groups that completed in the open step."""
    held: list[Group] = field(default_factory=list)
    """Groups to train that wait for others, so that an update is not too small."""
    stale: int = 0
    """Inputs that were dropped in the open step, because they had waited too long."""
    ended: list[Ended] = field(default_factory=list)
    """Problems that left since the last `finish_step`."""

    def input(self, group_id: str) -> StageInput:
        """The input of a group of a current stage."""
        return self.visits[self.owner[group_id]].inputs[group_id]

    def to_plain(self) -> dict[str, Any]:
        """Dictionaries, lists, strings and numbers only. Every problem and every group is written once."""
        # A held part of a group and the whole group may be there at once, so held groups stand apart.
        groups = {group.input.group_id: group for group in self.completed}
        for visit in self.visits.values():
            groups.update(visit.done)
            groups.update({group.input.group_id: group for group in visit.passed})
        inputs = [item for visit in self.visits.values() for item in visit.inputs.values()]
        known = set(self.owner)
        for group in [*groups.values(), *self.held]:
            if group.input.group_id not in known:
                known.add(group.input.group_id)
                inputs.append(group.input)
        problems = {item.problem.problem_id: item.problem for item in inputs}
        problems.update({name: visit.problem for name, visit in self.visits.items()})
        return {
            "step": self.step,
            "open": self.open,
            "round_taken": self.round_taken,
            "next_order": self.next_order,
            "stale": self.stale,
            "problems": [problem_to_plain(problem) for problem in problems.values()],
            "inputs": [input_to_plain(item) for item in inputs],
            "groups": {group_id: _group_to_plain(group) for group_id, group in groups.items()},
            "held": [[group.input.group_id, _group_to_plain(group)] for group in self.held],
            "visits": [
                {
                    "problem": visit.problem.problem_id,
                    "order": visit.order,
                    "stage_index": visit.stage_index,
                    "inputs": list(visit.inputs),
                    "done": list(visit.done),
                    "dropped": visit.dropped,
                    "passed": [group.input.group_id for group in visit.passed],
                }
                for visit in self.visits.values()
            ],
            "ready_step": dict(self.ready_step),
            # A list, because JSON would turn the numbers k into strings if they were keys.
            "arrived": _numbered_to_plain(self.arrived),
            "asked": {group_id: sorted(numbers) for group_id, numbers in self.asked.items()},
            "unfinished": _numbered_to_plain(self.unfinished),
            "trained": {group_id: sorted(names) for group_id, names in self.trained.items()},
            "completed": [group.input.group_id for group in self.completed],
            "ended": [[end.problem_id, end.stage, end.reason.value] for end in self.ended],
        }

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> SchedulerState:
        """The inverse of `to_plain`."""
        problems = {plain["problem_id"]: problem_from_plain(plain) for plain in data["problems"]}
        inputs = {plain["group_id"]: input_from_plain(plain, problems) for plain in data["inputs"]}
        groups = {
            group_id: _group_from_plain(plain, inputs[group_id]) for group_id, plain in data["groups"].items()
        }
        visits = {
            plain["problem"]: Visit(
                problem=problems[plain["problem"]],
                order=plain["order"],
                stage_index=plain["stage_index"],
                inputs={group_id: inputs[group_id] for group_id in plain["inputs"]},
                done={group_id: groups[group_id] for group_id in plain["done"]},
                dropped=plain["dropped"],
                passed=[groups[group_id] for group_id in plain["passed"]],
            )
            for plain in data["visits"]
        }
        return cls(
            step=data["step"],
            open=data["open"],
            round_taken=data["round_taken"],
            next_order=data["next_order"],
            stale=data["stale"],
            visits=visits,
            ready_step=dict(data["ready_step"]),
            arrived=_numbered_from_plain(data["arrived"]),
            asked={group_id: set(numbers) for group_id, numbers in data["asked"].items()},
            unfinished=_numbered_from_plain(data["unfinished"]),
            trained={group_id: set(names) for group_id, names in data["trained"].items()},
            held=[_group_from_plain(plain, inputs[group_id]) for group_id, plain in data["held"]],
            owner={group_id: name for name, visit in visits.items() for group_id in visit.inputs},
            completed=[groups[group_id] for group_id in data["completed"]],
            ended=[Ended(name, stage, EndReason(reason)) for name, stage, reason in data["ended"]],
        )


_Numbered = dict[str, dict[int, Sample]]


def _numbered_to_plain(samples: _Numbered) -> dict[str, Any]:
    return {
        group_id: [[k, sample_to_plain(sample)] for k, sample in members.items()]
        for group_id, members in samples.items()
    }


def _numbered_from_plain(data: dict[str, Any]) -> _Numbered:
    return {
        group_id: {k: sample_from_plain(plain) for k, plain in members} for group_id, members in data.items()
    }


def _group_to_plain(group: Group) -> dict[str, Any]:
    return {
        "samples": [sample_to_plain(sample) for sample in group.samples],
        "trained_before": sorted(group.trained_before),
    }


def _group_from_plain(data: dict[str, Any], item: StageInput) -> Group:
    samples = [sample_from_plain(plain) for plain in data["samples"]]
    return Group(item, samples, frozenset(data["trained_before"]))
