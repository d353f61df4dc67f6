"""Decide which stage inputs are decoded in which training step.

A problem goes through the stages of a method. At every stage it has one or more inputs; each is
answered `n` times and these answers form a group. A long answer may take several generation rounds, a
segment in each. When all groups of a problem's stage are complete, the method chooses the inputs of the
next stage from them. A sample is handed out for training once: in the step in which its group completes,
or, with partial groups, as soon as enough of its group have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from marsrl_verl.core.algorithm import Algorithm
from marsrl_verl.core.sample_checks import check_samples
from marsrl_verl.core.scheduler_state import Ended, EndReason, SchedulerState, Visit
from marsrl_verl.core.step_result import Pending, StepResult
from marsrl_verl.core.types import FinishReason, Group, Problem, Sample, StageInput
from marsrl_verl.settings.choices import Choice

STATE_VERSION = 5


class Mode(Choice):
    """How stages are spread over training steps."""

    SEQUENTIAL = "sequential"
    """A problem passes all stages inside one step, in several generation rounds."""
    PIPELINED = "pipelined"
    """A step has one generation round; it holds what waits at every stage (MarsRL, arXiv 2511.11373,
    §3.3). What becomes eligible in a step is decoded in the next one."""


class Scheduler:
    """The pools of waiting inputs, the groups in flight, and the order of everything.

    One training step is `start_step`, then `next_round` / `absorb` in turn until `next_round` returns
    nothing, then `finish_step`. Samples may come back in any order and in any portions, also in a
    later step; nothing that is handed out for training depends on that order.

    Args:
        algorithm: the method: its stages and how outputs become inputs.
        mode: `sequential` or `pipelined`.
        step_prompt_budget: most inputs per generation round; None: no limit. Unfinished samples go first,
            then later stages, inside a stage the older inputs.
        min_group: train a group's ended samples as soon as there are so many of them, while others still
            take their next segments; these are trained when they end. None: groups train complete.
        min_groups: fewer groups than this make no update: they are trained with the next step's. A small
            number; a large one makes small and large updates take turns.
        max_input_staleness: inputs of later stages that are older than so many steps when their turn comes
            are dropped: newer weights would be asked about what is no longer theirs. None: never.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        mode: Mode | str,
        *,
        step_prompt_budget: int | None = None,
        min_group: int | None = None,
        min_groups: int = 1,
        max_input_staleness: int | None = None,
    ) -> None:
        if step_prompt_budget is not None and step_prompt_budget < 1:
            raise ValueError(
                f"step_prompt_budget is {step_prompt_budget}, expected at least 1, or null for no limit"
            )
        if min_group is not None and min_group < 2:
            raise ValueError(f"min_group is {min_group}, expected at least 2 samples to compare, or null")
        if min_groups < 1:
            raise ValueError(f"min_groups is {min_groups}, expected at least 1")
        if max_input_staleness is not None and max_input_staleness < 1:
            raise ValueError(
                f"max_input_staleness is {max_input_staleness}, expected at least 1 (an input's first turn "
                "is the step after the one that made it), or null"
            )
        for name, value in (("min_group", min_group), ("max_input_staleness", max_input_staleness)):
            if value is not None and algorithm.whole_problems:
                raise ValueError(
                    f"{name} is {value}, but {type(algorithm).__name__} trains whole problems: set it to null"
                )
        self.max_input_staleness = max_input_staleness
        self.min_group = min_group
        self.min_groups = min_groups
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
        self._settle(step)
        if self.mode is Mode.PIPELINED and self._state.round_taken:
            return []
        self._state.round_taken = True
        self._drop_stale(step)
        ready = [item for item in self._waiting_inputs() if self._state.ready_step[item.group_id] <= step]
        return [self._hand_out(item) for item in ready[: self.step_prompt_budget]]

    def _drop_stale(self, step: int) -> None:
        if self.max_input_staleness is None:
            return
        for item in self._waiting_inputs():
            old = step - item.created_step > self.max_input_staleness
            # A problem does not age, and what is begun is finished.
            if old and item.stage_index > 0 and item.group_id not in self._state.arrived:
                del self._state.ready_step[item.group_id]
                visit = self._state.visits[item.problem.problem_id]
                self._forget(visit, item.group_id)
                self._state.stale += 1
                if not visit.inputs:
                    self._end(visit, EndReason.STALE)

    def _hand_out(self, item: StageInput) -> StageInput:
        del self._state.ready_step[item.group_id]
        self._state.arrived.setdefault(item.group_id, {})
        unfinished = self._state.unfinished.get(item.group_id, {})
        self._state.asked[item.group_id] = set(unfinished or range(item.n))
        return replace(item, unfinished=tuple(unfinished[k] for k in sorted(unfinished)))

    def absorb(self, samples: Iterable[Sample]) -> None:
        """Take back samples, scored or with a full segment. On an error nothing of this call is taken.

        Raises:
            ValueError: as `check_samples`.
        """
        step = self._require_open("absorb")
        samples = list(samples)
        numbers = check_samples(self._state, samples)
        touched: dict[str, None] = {}
        for sample, number in zip(samples, numbers, strict=True):
            self._state.asked[sample.group_id].remove(number)
            unfinished = self._state.unfinished.setdefault(sample.group_id, {})
            unfinished.pop(number, None)
            ended = sample.finish_reason is not FinishReason.SEGMENT
            (self._state.arrived[sample.group_id] if ended else unfinished)[number] = sample
            touched[sample.group_id] = None
        for group_id in touched:
            if not self._state.asked[group_id]:
                self._end_round(group_id, step)

    def finish_step(self, *, last: bool = False) -> StepResult:
        """Close the step and hand out what completed in it; the `last` one holds nothing back."""
        step = self._require_open("finish_step")
        self._settle(step)
        if self.mode is Mode.SEQUENTIAL and self._state.ready_step:
            raise RuntimeError(
                f"finish_step: {len(self._state.ready_step)} inputs still wait in step {step}; in sequential "
                "mode call next_round and absorb until next_round returns nothing"
            )
        completed = sorted(self._state.completed, key=lambda group: group.input.group_id)
        trained = self._groups_to_train(completed, 1 if last else self.min_groups)
        ended = sorted(self._state.ended, key=lambda end: end.problem_id)
        stale, self._state.stale = self._state.stale, 0
        self._state.completed, self._state.ended, self._state.open = [], [], False
        waiting = self._waiting_inputs()
        names = [stage.name for stage in self.algorithm.stages]
        ages: dict[str, list[int]] = {}
        for group in completed:
            ages.setdefault(group.input.stage, []).append(step - group.input.created_step)
        return StepResult(
            step=step,
            trained=trained,
            completed=completed,
            ended=ended,
            waiting={name: sum(item.stage == name for item in waiting) for name in names},
            in_flight=len(self._state.arrived),
            unfinished=sum(len(members) for members in self._state.unfinished.values()),
            held=len(self._state.held),
            stale=stale,
            oldest_waiting={
                name: max((step - item.created_step for item in waiting if item.stage == name), default=0)
                for name in names
            },
            input_ages={name: sum(values) / len(values) for name, values in ages.items()},
        )

    def _groups_to_train(self, completed: list[Group], least: int) -> list[Group]:
        """What enters the loss of this step; fewer groups than `least` are held back."""
        groups = list(self._state.held)
        if not self.algorithm.whole_problems:  # else they are held since their problem ended
            groups = groups + [group for group in completed if self.algorithm.trains(group)]
        if self.min_group is not None:
            for group_id in sorted(self._state.arrived):
                members = self._state.arrived[group_id]
                before = self._state.trained.get(group_id, set())
                part = Group(
                    self._state.input(group_id), [members[k] for k in sorted(members)], frozenset(before)
                )
                fresh = {sample.sample_id for sample in part.samples} - before
                if len(fresh) >= self.min_group and self.algorithm.trains(part):
                    self._state.trained[group_id] = before | fresh
                    groups.append(part)
        if len(groups) < least:
            self._state.held = groups
            return []
        self._state.held = []
        return sorted(groups, key=lambda group: (group.input.group_id, len(group.trained_before)))

    # --- the pools ---------------------------------------------------------------------------

    @property
    def open_step(self) -> int | None:
        """The training step that was started and not finished; None between two steps."""
        return self._state.step if self._state.open else None

    def waiting_problems(self) -> int:
        """Inputs that wait at the first stage and were not begun."""
        return sum(
            item.stage_index == 0 and item.group_id not in self._state.arrived
            for item in self._waiting_inputs()
        )

    def idle(self) -> bool:
        """True when no problem is on its way: nothing waits, is in flight or is to be settled."""
        return not self._state.visits

    def pending(self) -> list[Pending]:
        """Inputs being decoded with the samples that are missing: what to ask for again after a restart."""
        result = []
        for group_id, asked in sorted(self._state.asked.items()):
            unfinished = self._state.unfinished.get(group_id, {})
            item = replace(
                self._state.input(group_id), unfinished=tuple(unfinished[k] for k in sorted(unfinished))
            )
            result.append(Pending(item, tuple(sorted(asked))))
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
            self._forget(visit, item.group_id)
        for visit in list(self._state.visits.values()):
            if visit.dropped and visit.complete:
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
        """What waits, in the order in which it is decoded: unfinished groups first, then later stages, then
        by age. The key has no trace of the order in which samples came back."""

        def key(group_id: str) -> tuple[bool, int, int, int, int]:
            visit = self._state.visits[self._state.owner[group_id]]
            place = list(visit.inputs).index(group_id)
            fresh = group_id not in self._state.arrived
            return fresh, -visit.stage_index, self._state.ready_step[group_id], visit.order, place

        return [self._state.input(group_id) for group_id in sorted(self._state.ready_step, key=key)]

    def _end_round(self, group_id: str, step: int) -> None:
        """All samples that were asked for are back: the group is complete, or goes on in a later round."""
        del self._state.asked[group_id]
        if not self._state.unfinished[group_id]:
            del self._state.unfinished[group_id]
            self._complete_group(group_id)
            return
        visit = self._state.visits[self._state.owner[group_id]]
        if not visit.dropped:
            self._state.ready_step[group_id] = step + (self.mode is Mode.PIPELINED)
            return
        self._forget(visit, group_id)
        if visit.complete:
            self._end(visit, EndReason.DROPPED)

    def _forget(self, visit: Visit, group_id: str) -> None:
        """Drop an input with whatever of it has been decoded."""
        del visit.inputs[group_id], self._state.owner[group_id]
        for pool in (self._state.arrived, self._state.unfinished, self._state.trained):
            pool.pop(group_id, None)

    def _complete_group(self, group_id: str) -> None:
        item, arrived = self._state.input(group_id), self._state.arrived.pop(group_id)
        trained_before = frozenset(self._state.trained.pop(group_id, ()))
        group = Group(item, [arrived[k] for k in sorted(arrived)], trained_before)
        self._state.completed.append(group)
        self._state.visits[item.problem.problem_id].done[group_id] = group

    def unsettled(self) -> list[Group]:
        """Complete groups of problems whose stage is complete and whose next one is not chosen yet, by group
        id. What the method wants to know of them can still be found out."""
        groups = [group for visit in self._complete_visits() for group in visit.done.values()]
        return sorted(groups, key=lambda group: group.input.group_id)

    def _complete_visits(self) -> list[Visit]:
        return [visit for visit in self._state.visits.values() if visit.complete]

    def _settle(self, step: int) -> None:
        """Every problem whose stage is complete goes on to its next stage, or out.

        All at once, in the order of their arrival: what a method observes of several problems does not
        depend on which of them was complete first.
        """
        visits = sorted(self._complete_visits(), key=lambda visit: visit.order)
        by_stage: dict[int, list[list[Group]]] = {}
        for visit in visits:
            if not visit.dropped:
                by_stage.setdefault(visit.stage_index, []).append(visit.groups())
        for stage_index, problems in sorted(by_stage.items()):
            self.algorithm.observe(stage_index, problems, step)
        for visit in visits:
            self._leave_stage(visit, step)

    def _leave_stage(self, visit: Visit, step: int) -> None:
        if visit.dropped:
            self._end(visit, EndReason.DROPPED)
            return
        if visit.stage_index + 1 == len(self.algorithm.stages):
            self._end(visit, EndReason.FINISHED)
            return
        groups = visit.groups()
        inputs = self.algorithm.next_inputs(visit.problem, visit.stage_index, groups, step)
        if not inputs:
            self._end(visit, EndReason.REJECTED if inputs is None else EndReason.NO_INPUTS)
            return
        for group_id in visit.inputs:
            del self._state.owner[group_id]
        if self.algorithm.whole_problems:
            visit.passed += groups
        visit.inputs, visit.done = {}, {}
        visit.stage_index += 1
        self._enter_stage(visit, inputs, ready_step=step + (self.mode is Mode.PIPELINED))

    def _enter_stage(self, visit: Visit, inputs: list[StageInput], ready_step: int) -> None:
        if not inputs:
            self._end(visit, EndReason.NOT_ASKED)
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
        if self.algorithm.whole_problems and reason is not EndReason.REJECTED:
            groups = visit.passed + visit.groups()
            self.algorithm.observe_problem(groups)
            if self.algorithm.problem_trains(groups):
                self._state.held += groups
        stage = self.algorithm.stages[visit.stage_index]
        self._state.ended.append(Ended(visit.problem.problem_id, stage.name, reason))
