"""Decide which stage inputs are decoded in which training step.

A problem goes through the stages of a method. At every stage it has one or more inputs; each is
answered `n` times and these answers form a group. When all groups of a problem's stage are complete,
the method chooses the inputs of the next stage from them. A group is handed out for training once,
in the step in which it completes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from marsrl_verl.core.algorithm import Algorithm
from marsrl_verl.core.scheduler_state import Ended, EndReason, SchedulerState, Visit
from marsrl_verl.core.types import Group, Problem, Sample, StageInput

STATE_VERSION = 1


class Mode(str, Enum):
    """How stages are spread over training steps."""

    SEQUENTIAL = "sequential"
    """A problem passes all stages inside one step, in several generation rounds."""
    PIPELINED = "pipelined"
    """A step has one generation round; it holds what waits at every stage (MarsRL, arXiv 2511.11373,
    §3.3). What becomes eligible in a step is decoded in the next one."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An input that was handed out and not fully answered yet."""

    input: StageInput
    missing: tuple[int, ...]
    """The numbers k of the samples that have not come back."""


@dataclass(slots=True)
class StepResult:
    """What one training step produced; every list is sorted by id."""

    step: int
    trained: list[Group]
    """Completed groups that enter the loss."""
    completed: list[Group]
    """All groups that completed in this step."""
    ended: list[Ended]
    """Problems that left in this step."""
    waiting: dict[str, int]
    """Inputs that wait for a coming round, by stage (every stage is listed)."""
    in_flight: int
    """Inputs that were handed out and are not fully answered."""
    oldest_waiting: dict[str, int]
    """Age in steps of the oldest waiting input, by stage; 0 where none waits."""
    input_ages: dict[str, float]
    """Mean age in steps of the inputs of the completed groups, by stage with such groups: how old the
    text is that the newest weights answered."""


class Scheduler:
    """The pools of waiting inputs, the groups in flight, and the order of everything.

    One training step is `start_step`, then `next_round` / `absorb` in turn until `next_round` returns
    nothing, then `finish_step`. Samples may come back in any order and in any portions, also in a
    later step; nothing that is handed out for training depends on that order.

    Args:
        algorithm: the method: its stages and how outputs become inputs.
        mode: `sequential` or `pipelined`.
        step_prompt_budget: most inputs per generation round; None: no limit. Later stages go first,
            inside a stage the older inputs.
    """

    def __init__(
        self, algorithm: Algorithm, mode: Mode | str, *, step_prompt_budget: int | None = None
    ) -> None:
        if step_prompt_budget is not None and step_prompt_budget < 1:
            raise ValueError(
                f"step_prompt_budget is {step_prompt_budget}, expected at least 1, or null for no limit"
            )
        self.algorithm = algorithm
        self.mode = Mode(mode)
        self.step_prompt_budget = step_prompt_budget
        self._state = SchedulerState()

    # --- one training step -------------------------------------------------------------------

    def start_step(self, step: int, problems: Iterable[Problem]) -> None:
        """Open training step `step` and let new problems enter the first stage's pool."""
        if self._state.open:
            raise RuntimeError(
                f"start_step({step}): step {self._state.step} is still open, call finish_step first"
            )
        if self._state.step is not None and step <= self._state.step:
            raise ValueError(f"start_step({step}): steps must rise, the last one was {self._state.step}")
        problems = list(problems)
        counts = Counter(problem.problem_id for problem in problems)
        taken = sorted(name for name, count in counts.items() if count > 1 or name in self._state.visits)
        if taken:
            raise ValueError(
                f"start_step({step}): problem ids must be unique for the run, found again: {taken}"
            )
        state = self._state
        state.step, state.open, state.round_taken = step, True, False
        for problem in problems:
            visit = Visit(problem, self._state.next_order)
            self._state.next_order += 1
            self._state.visits[problem.problem_id] = visit
            self._enter_stage(visit, self.algorithm.first_inputs(problem, step), ready_step=step)

    def next_round(self) -> list[StageInput]:
        """The inputs to decode now; empty when the step needs no further generation round.

        Sequential: everything that waits, up to the budget. Pipelined: one round per step with what
        waited when the step started, up to the budget; afterwards empty.
        """
        step = self._require_open("next_round")
        if self.mode is Mode.PIPELINED and self._state.round_taken:
            return []
        self._state.round_taken = True
        ready = [item for item in self._waiting_inputs() if self._state.ready_step[item.group_id] <= step]
        chosen = ready[: self.step_prompt_budget]
        for item in chosen:
            del self._state.ready_step[item.group_id]
            self._state.arrived[item.group_id] = {}
        return chosen

    def absorb(self, samples: Iterable[Sample]) -> None:
        """Take back scored samples. On an error nothing of this call is taken.

        Raises:
            ValueError: a sample is unknown, came twice or is not scored; the message has its id.
        """
        step = self._require_open("absorb")
        samples = list(samples)
        numbers = self._check(samples)
        touched: dict[str, None] = {}
        for sample, number in zip(samples, numbers, strict=True):
            self._state.arrived[sample.group_id][number] = sample
            touched[sample.group_id] = None
        for group_id in touched:
            self._complete_group(group_id, step)

    def finish_step(self) -> StepResult:
        """Close the step and hand out what completed in it."""
        step = self._require_open("finish_step")
        if self.mode is Mode.SEQUENTIAL and self._state.ready_step:
            raise RuntimeError(
                f"finish_step: {len(self._state.ready_step)} inputs still wait in step {step}; in sequential "
                "mode call next_round and absorb until next_round returns nothing"
            )
        completed = sorted(self._state.completed, key=lambda group: group.input.group_id)
        ended = sorted(self._state.ended, key=lambda end: end.problem_id)
        self._state.completed, self._state.ended, self._state.open = [], [], False
        waiting = self._waiting_inputs()
        names = [stage.name for stage in self.algorithm.stages]
        ages: dict[str, list[int]] = {}
        for group in completed:
            ages.setdefault(group.input.stage, []).append(step - group.input.created_step)
        return StepResult(
            step=step,
            trained=[group for group in completed if self.algorithm.trains(group)],
            completed=completed,
            ended=ended,
            waiting={name: sum(item.stage == name for item in waiting) for name in names},
            in_flight=len(self._state.arrived),
            oldest_waiting={
                name: max((step - item.created_step for item in waiting if item.stage == name), default=0)
                for name in names
            },
            input_ages={name: sum(values) / len(values) for name, values in ages.items()},
        )

    # --- the pools ---------------------------------------------------------------------------

    def waiting_problems(self) -> int:
        """Inputs that wait at the first stage."""
        return sum(item.stage_index == 0 for item in self._waiting_inputs())

    def idle(self) -> bool:
        """True when nothing waits and nothing is in flight."""
        return not self._state.ready_step and not self._state.arrived

    def pending(self) -> list[Pending]:
        """Inputs in flight with the samples that are missing: what to ask for again after a restart."""
        result = []
        for group_id, arrived in sorted(self._state.arrived.items()):
            item = self._state.input(group_id)
            result.append(Pending(item, tuple(k for k in range(item.n) if k not in arrived)))
        return result

    def drop_waiting(self) -> list[StageInput]:
        """Forget everything that waits (end of the data) and return it.

        Groups in flight are still completed and trained, but lead to no further stage. The problems
        are reported as dropped by the `finish_step` of the step in which they leave.
        """
        dropped = self._waiting_inputs()
        self._state.ready_step = {}
        for item in dropped:
            visit = self._state.visits[item.problem.problem_id]
            visit.dropped = True
            del visit.inputs[item.group_id], self._state.owner[item.group_id]
        for visit in list(self._state.visits.values()):
            if visit.dropped and len(visit.done) == len(visit.inputs):
                self._end(visit, EndReason.DROPPED)
        return dropped

    # --- checkpoint --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the coming steps hold, at any point of a step, as plain data
        (dictionaries, lists, strings, numbers), half-answered groups included."""
        return {
            "version": STATE_VERSION,
            "mode": self.mode.value,
            "stages": self._stage_list(),
            "state": self._state.to_plain(),
        }

    def load_state_dict(self, data: dict[str, Any]) -> None:
        """Replace the pools by saved ones. The budget may differ from the saved run's.

        Raises:
            ValueError: the data is of another version, mode or method.
        """
        for key, here in (
            ("version", STATE_VERSION),
            ("mode", self.mode.value),
            ("stages", self._stage_list()),
        ):
            if key not in data:
                raise ValueError(f"scheduler state: key {key!r} is missing, found {sorted(data)}")
            if data[key] != here:
                raise ValueError(
                    f"scheduler state: saved {key} is {data[key]!r}, this run has {here!r}; resume with the "
                    "saved settings or start a new run"
                )
        self._state = SchedulerState.from_plain(data["state"])

    def _stage_list(self) -> list[list[str]]:
        return [[stage.name, stage.role] for stage in self.algorithm.stages]

    # --- internals ---------------------------------------------------------------------------

    def _require_open(self, call: str) -> int:
        if not self._state.open or self._state.step is None:
            raise RuntimeError(f"{call}: no training step is open, call start_step first")
        return self._state.step

    def _waiting_inputs(self) -> list[StageInput]:
        """What waits, in the order in which it is decoded: later stages first, then by age. The key has
        no trace of the order in which samples came back."""

        def key(group_id: str) -> tuple[int, int, int, int]:
            visit = self._state.visits[self._state.owner[group_id]]
            place = list(visit.inputs).index(group_id)
            return -visit.stage_index, self._state.ready_step[group_id], visit.order, place

        return [self._state.input(group_id) for group_id in sorted(self._state.ready_step, key=key)]

    def _check(self, samples: list[Sample]) -> list[int]:
        """Validate all samples before any is taken; returns their numbers k inside their groups."""
        numbers = []
        seen: set[str] = set()
        for sample in samples:
            arrived = self._state.arrived.get(sample.group_id)
            prefix, _, digits = sample.sample_id.rpartition("#")
            if arrived is None:
                raise ValueError(
                    f"sample {sample.sample_id}: its group {sample.group_id} is not in flight (never handed "
                    "out, or complete already)"
                )
            n = self._state.input(sample.group_id).n
            if prefix != sample.group_id or not digits.isdecimal() or int(digits) >= n:
                raise ValueError(
                    f"sample {sample.sample_id}: unknown, group {sample.group_id} has samples "
                    f"{sample.group_id}#0 to #{n - 1}"
                )
            number = int(digits)
            if number in arrived or sample.sample_id in seen:
                raise ValueError(f"sample {sample.sample_id}: came twice")
            if sample.outcome is None:
                raise ValueError(f"sample {sample.sample_id}: not scored, score it before absorb")
            if not math.isfinite(sample.reward):
                raise ValueError(f"sample {sample.sample_id}: reward {sample.reward} is not a finite number")
            seen.add(sample.sample_id)
            numbers.append(number)
        return numbers

    def _complete_group(self, group_id: str, step: int) -> None:
        item, arrived = self._state.input(group_id), self._state.arrived[group_id]
        if len(arrived) < item.n:
            return
        del self._state.arrived[group_id]
        group = Group(item, [arrived[k] for k in sorted(arrived)])
        self._state.completed.append(group)
        visit = self._state.visits[item.problem.problem_id]
        visit.done[group_id] = group
        if len(visit.done) == len(visit.inputs):
            self._leave_stage(visit, step)

    def _leave_stage(self, visit: Visit, step: int) -> None:
        """All groups of the problem's stage are complete: on to the next stage, or out."""
        if visit.dropped:
            self._end(visit, EndReason.DROPPED)
            return
        if visit.stage_index + 1 == len(self.algorithm.stages):
            self._end(visit, EndReason.FINISHED)
            return
        groups = [visit.done[group_id] for group_id in sorted(visit.done)]
        inputs = self.algorithm.next_inputs(visit.problem, visit.stage_index, groups, step)
        for group_id in visit.inputs:
            del self._state.owner[group_id]
        visit.inputs, visit.done = {}, {}
        if inputs:
            visit.stage_index += 1
        self._enter_stage(visit, inputs, ready_step=step + (self.mode is Mode.PIPELINED))

    def _enter_stage(self, visit: Visit, inputs: list[StageInput], ready_step: int) -> None:
        if not inputs:
            self._end(visit, EndReason.NO_INPUTS)
            return
        stage = self.algorithm.stages[visit.stage_index]
        for item in inputs:
            if item.group_id in self._state.owner:
                raise ValueError(f"input {item.group_id}: the method gave this group id twice")
            if (item.stage_index, item.stage) != (visit.stage_index, stage.name) or item.n < 1:
                raise ValueError(
                    f"input {item.group_id}: found stage {item.stage_index} ({item.stage}) and n={item.n}, "
                    f"expected stage {visit.stage_index} ({stage.name}) and n of at least 1"
                )
            visit.inputs[item.group_id] = item
            self._state.owner[item.group_id] = visit.problem.problem_id
            self._state.ready_step[item.group_id] = ready_step

    def _end(self, visit: Visit, reason: EndReason) -> None:
        for group_id in visit.inputs:
            del self._state.owner[group_id]
        del self._state.visits[visit.problem.problem_id]
        stage = self.algorithm.stages[visit.stage_index]
        self._state.ended.append(Ended(visit.problem.problem_id, stage.name, reason))
