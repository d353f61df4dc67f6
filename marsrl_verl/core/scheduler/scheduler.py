"""Decide which rollout requests are decoded in which training step.

A problem goes through the stages of a method. At every stage it has one or more requests; each becomes a
group of `n` trajectories. A long one may take several generation rounds, a part in each. When all groups of
a problem's stage are complete, the method makes the next stage's requests from them. A trajectory is handed
out for training once: in the step in which its group completes, with partial groups as soon as enough of its
group have ended, or with its whole problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, is_trained
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.schedule import Unit
from marsrl_verl.core.scheduler.checks import check_output, check_requests, check_settings
from marsrl_verl.core.scheduler.state import PendingGroup, ProblemState, SchedulerState, StepResult
from marsrl_verl.core.stage import Ended, EndReason
from marsrl_verl.core.trajectory import RolloutOutput
from marsrl_verl.settings.choices import Choice


class Mode(Choice):
    """Distribution of stages over training steps."""

    SEQUENTIAL = "sequential"
    """A problem passes all stages inside one step, in several generation rounds."""
    PIPELINED = "pipelined"
    """A step has one generation round; it holds what waits at every stage (MarsRL, arXiv 2511.11373,
    §3.3). What becomes eligible in a step is decoded in the next one."""


class Scheduler:
    """The pools of waiting requests, the groups in flight, and the order of everything.

    One training step is `start_step`, then `next_round` / `absorb` in turn until `next_round` returns
    nothing, then `finish_step`. Outputs may come back in any order and in any portions, also in a
    later step; nothing that is handed out for training depends on that order.

    Args:
        method: its stages and how outputs become requests.
        mode: `sequential` or `pipelined`.
        step_prompt_budget: most requests per generation round; None: no limit. Paused trajectories go first,
            then later stages, inside a stage the older requests.
        min_group: train a group's ended trajectories as soon as there are so many of them, while others still
            take further rounds; these are trained when they end. None: groups train complete.
        min_groups: fewer groups than this make no update: they are trained with the next step's. A small
            number; a large one makes small and large updates take turns.
        max_request_staleness: most steps that a request of a later stage may have waited when its turn comes;
            older ones are dropped, since they show text of weights that are no longer current. None: no
            limit.
    """

    def __init__(
        self,
        method: Method,
        mode: Mode | str,
        *,
        step_prompt_budget: int | None = None,
        min_group: int | None = None,
        min_groups: int = 1,
        max_request_staleness: int | None = None,
    ) -> None:
        check_settings(method, step_prompt_budget, min_group, min_groups, max_request_staleness)
        self.method, self.mode, self.step_prompt_budget = method, Mode(mode), step_prompt_budget
        self.min_group, self.min_groups = min_group, min_groups
        self.max_request_staleness = max_request_staleness
        self._stages = {stage.name: stage for stage in method.stages(method.config)}
        self._place = {name: place for place, name in enumerate(self._stages)}
        self._state = SchedulerState()

    # --- one training step -------------------------------------------------------------------

    def start_step(self, step: int, problems: Iterable[Problem]) -> None:
        """Opens training step `step` and lets new problems enter."""
        state = self._state
        if state.open:
            raise RuntimeError(f"start_step({step}): step {state.step} is still open, call finish_step first")
        if state.step is not None and step <= state.step:
            raise ValueError(f"start_step({step}): steps must rise, the last one was {state.step}")
        problems = list(problems)
        counts = Counter(problem.problem_id for problem in problems)
        taken = sorted(name for name, count in counts.items() if count > 1 or name in state.problems)
        if taken:
            raise ValueError(
                f"start_step({step}): problem ids must be unique for the run, found again: {taken}"
            )
        state.step, state.open, state.round_taken = step, True, False
        for problem in problems:
            one = ProblemState(problem, state.next_order, next(iter(self._stages)))
            state.next_order += 1
            state.problems[problem.problem_id] = one
            requests = self.method.first_requests(problem, step)
            if requests:
                self._enter_stage(one, requests, tuple(self._stages), ready_step=step)
            else:
                self._end(one, EndReason.SKIPPED)

    def next_round(self) -> list[RolloutRequest]:
        """The requests to decode now; empty when the step needs no further generation round.

        Sequential: everything that waits, up to the budget. Pipelined: one round per step with what
        waited when the step started, up to the budget; afterwards empty.
        """
        step = self._require_open("next_round")
        self._advance(step)
        if self.mode is Mode.PIPELINED and self._state.round_taken:
            return []
        self._state.round_taken = True
        self._drop_stale(step)
        ready = [item for item in self._waiting() if self._state.ready_step[item.group_id] <= step]
        return [self._dispatch(item) for item in ready[: self.step_prompt_budget]]

    def _drop_stale(self, step: int) -> None:
        if self.max_request_staleness is None:
            return
        for item in self._waiting():
            old = step - item.created_step > self.max_request_staleness
            # New problems never get stale, and begun groups are finished.
            one = self._state.problems[item.problem.problem_id]
            if old and not one.begins and item.group_id not in self._state.pending:
                del self._state.ready_step[item.group_id]
                self._discard(one, item.group_id)
                self._state.stale += 1
                if not one.requests:
                    self._end(one, EndReason.STALE)

    def _dispatch(self, item: RolloutRequest) -> RolloutRequest:
        del self._state.ready_step[item.group_id]
        pending = self._state.pending.setdefault(item.group_id, PendingGroup())
        pending.in_flight = True
        return self._request_of(item, pending)

    @staticmethod
    def _request_of(item: RolloutRequest, pending: PendingGroup) -> RolloutRequest:
        begun = pending.members or pending.state is not None
        return item.resumed(pending.output(item.group_id) if begun else None)

    def absorb(self, outputs: Iterable[RolloutOutput]) -> None:
        """Takes the outputs of a round, ended trajectories scored. On an error nothing of this call is taken.

        Raises:
            ValueError: as `check_output`, or a group comes twice, or grows where parts of groups are trained.
        """
        step = self._require_open("absorb")
        outputs = list(outputs)
        counts = Counter(output.group_id for output in outputs)
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise ValueError(f"group {twice[0]} came twice")
        for output in outputs:
            check_output(self._state, self._stages, output)
            if self.min_group is not None and output.state is not None:
                raise ValueError(
                    f"group {output.group_id} grows from round to round, and min_group is {self.min_group}: "
                    "a part of it says nothing about the whole; set min_group to null"
                )
        for output in outputs:
            self._end_round(output, step)

    def finish_step(self, *, last: bool = False, epoch_over: bool = False) -> StepResult:
        """Closes the step and hands out what completed in it.

        Args:
            last: it is the last one of all, and defers nothing.
            epoch_over: no further problem comes before those on their way have ended; once the last one has,
                nothing is deferred either.
        """
        step, state = self._require_open("finish_step"), self._state
        self._advance(step)
        if self.mode is Mode.SEQUENTIAL and state.ready_step:
            raise RuntimeError(
                f"finish_step: {len(state.ready_step)} requests still wait in step {step}; in sequential "
                "mode call next_round and absorb until next_round returns nothing"
            )
        completed = sorted(state.completed, key=lambda group: group.group_id)
        nobody_follows = last or (epoch_over and self.idle())
        trained = self._groups_to_train(completed, 1 if nobody_follows else self.min_groups)
        stages, later = tuple(self._stages), self._rewarded_at_the_end
        result = StepResult.of(state, stages, trained, completed, self._waiting(), later)
        state.completed, state.ended, state.open, state.stale = [], [], False, 0
        state.own_arrays()
        return result

    def _groups_to_train(self, completed: list[Group], least: int) -> list[Group]:
        """Groups that enter the loss of this step; fewer than `least` are deferred."""
        groups, step = list(self._state.deferred), self._state.step or 0
        if self.method.schedule.unit is Unit.GROUP:  # else they are deferred since their problem ended
            groups += [group for group in completed if is_trained(self.method, [group], step)]
        if self.min_group is not None:
            for group_id in sorted(self._state.pending):
                pending = self._state.pending[group_id]
                part = Group(self._state.request(group_id), pending.ended(), frozenset(pending.trained))
                fresh = {one.trajectory_id for one in part.trajectories} - pending.trained
                if len(fresh) >= self.min_group and is_trained(self.method, [part], step):
                    pending.trained |= fresh
                    groups.append(part)
        if len(groups) < least:
            self._state.deferred = groups
            return []
        self._state.deferred = []
        return sorted(groups, key=lambda group: (group.group_id, len(group.trained_before)))

    # --- the pools ---------------------------------------------------------------------------

    @property
    def open_step(self) -> int | None:
        """The training step that was started and not finished; None between two steps."""
        return self._state.step if self._state.open else None

    def waiting_problems(self) -> int:
        """New problems of which a first request waits and was not begun."""
        waiting = self._state.ready_step.keys() - self._state.pending.keys()
        problems = {self._state.problem_of[group_id] for group_id in waiting}
        return sum(self._state.problems[problem_id].begins for problem_id in problems)

    def idle(self) -> bool:
        """True if no problem is on its way: nothing waits, is in flight or is to go on."""
        return not self._state.problems

    def in_flight(self) -> list[RolloutRequest]:
        """Requests that are being decoded; they are sent again after a restart."""
        return [
            self._request_of(self._state.request(group_id), pending)
            for group_id, pending in sorted(self._state.pending.items())
            if pending.in_flight
        ]

    def drop_waiting(self) -> list[RolloutRequest]:
        """Discard everything that waits (end of the data) and return it.

        Groups in flight are still completed and trained, but lead to no further stage. The problems
        are reported as dropped by the `finish_step` of the step in which they leave.
        """
        dropped = self._waiting()
        self._state.ready_step = {}
        for item in dropped:
            one = self._state.problems[item.problem.problem_id]
            one.dropped = True
            self._discard(one, item.group_id)
        for one in list(self._state.problems.values()):
            if one.dropped and one.complete:
                self._end(one, EndReason.DROPPED)
        return dropped

    # --- checkpoint --------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the coming steps hold, at any point of a step, as plain data
        (dictionaries, lists, strings, numbers, arrays), half-answered groups included."""
        return {"mode": self.mode.value, "stages": self._stage_list(), "state": self._state.to_plain()}

    def load_state_dict(self, data: dict[str, Any]) -> None:
        """Replaces the pools by saved ones. The budget may differ from the saved run's.

        Raises:
            ValueError: the data is of another mode or method.
        """
        for key, here in (("mode", self.mode.value), ("stages", self._stage_list())):
            if key not in data:
                raise ValueError(f"scheduler state: key {key!r} is missing, found {sorted(data)}")
            if data[key] != here:
                raise ValueError(
                    f"scheduler state: saved {key} is {data[key]!r}, this run has {here!r}; resume with the "
                    "saved settings or start a new run"
                )
        self._state = SchedulerState.from_plain(data["state"])

    def _stage_list(self) -> list[list[str]]:
        return [[stage.name, stage.role] for stage in self._stages.values()]

    # --- internals ---------------------------------------------------------------------------

    def _require_open(self, call: str) -> int:
        if not self._state.open or self._state.step is None:
            raise RuntimeError(f"{call}: no training step is open, call start_step first")
        return self._state.step

    def _waiting(self) -> list[RolloutRequest]:
        """Waiting requests in the order in which they are decoded: begun groups first, then later stages,
        then by age. The order does not depend on that in which outputs came back."""

        def key(group_id: str) -> tuple[bool, int, int, int, int]:
            one = self._state.problems[self._state.problem_of[group_id]]
            place = list(one.requests).index(group_id)
            fresh = group_id not in self._state.pending
            return fresh, -self._place[one.stage], self._state.ready_step[group_id], one.order, place

        return [self._state.request(group_id) for group_id in sorted(self._state.ready_step, key=key)]

    def _end_round(self, output: RolloutOutput, step: int) -> None:
        """Takes a group's round: the group is complete, or goes on in a later round."""
        group_id = output.group_id
        pending = self._state.pending[group_id]
        pending.members.update({one.number: one for one in output.trajectories})
        pending.state, pending.in_flight = output.state, False
        if pending.state is None and not pending.paused():
            self._complete_group(group_id)
            return
        one = self._state.problems[self._state.problem_of[group_id]]
        if one.dropped:
            self._discard(one, group_id)
        else:
            self._state.ready_step[group_id] = step + (self.mode is Mode.PIPELINED)

    def _discard(self, one: ProblemState, group_id: str) -> None:
        """Drops a request with whatever of it has been decoded."""
        del one.requests[group_id], self._state.problem_of[group_id]
        self._state.pending.pop(group_id, None)

    def _complete_group(self, group_id: str) -> None:
        request, pending = self._state.request(group_id), self._state.pending.pop(group_id)
        group = Group(request, pending.ended(), frozenset(pending.trained))
        if self.method.schedule.unit is Unit.GROUP:
            self._reward_late([group])
        if not self._rewarded_at_the_end(group):
            self._state.completed.append(group)
        self._state.problems[request.problem.problem_id].done[group_id] = group

    def _rewarded_at_the_end(self, group: Group) -> bool:
        """True if a group gets its rewards at the end of its problem; it is reported then."""
        return self.method.schedule.unit is Unit.PROBLEM and self._stages[group.request.stage].deferred_reward

    def _reward_late(self, groups: list[Group], *, complete: bool = True) -> None:
        """Gives a unit's trajectories their late rewards; if it is complete, all must have one then."""
        members = {one.trajectory_id: one for group in groups for one in group.trajectories}
        for name, reward in self.method.deferred_rewards(groups).items():
            if name not in members:
                raise ValueError(f"{type(self.method).__name__} rewards {name}, which is not of its unit")
            members[name].reward = reward
        if complete and (missing := sorted(name for name, one in members.items() if one.reward is None)):
            raise ValueError(
                f"trajectory {missing[0]} has no reward, though its unit is complete: "
                f"{type(self.method).__name__}.deferred_rewards must give it one"
            )

    def completed_stages(self) -> list[Group]:
        """Complete groups of problems whose stage is complete and whose next one is not chosen yet, by group
        id. They can still be measured for the method (`Method.probes`)."""
        problems = self._state.problems.values()
        groups = (group for one in problems if one.complete for group in one.done.values())
        return sorted(groups, key=lambda group: group.group_id)

    def _advance(self, step: int) -> None:
        """Moves every problem whose stage is complete to its next stage, or out. All at once, in the order of
        their arrival, so that what a method observes does not depend on which was complete first."""
        problems = self._state.problems.values()
        complete = sorted((one for one in problems if one.complete), key=lambda one: one.order)
        for stage in self._stages:
            seen = [one.groups() for one in complete if one.stage == stage and not one.dropped]
            if seen:
                self.method.observe_stage(stage, seen, step)
        for one in complete:
            self._leave_stage(one, step)

    def _leave_stage(self, one: ProblemState, step: int) -> None:
        stage = self._stages[one.stage]
        if one.dropped or not stage.next:
            self._end(one, EndReason.DROPPED if one.dropped else EndReason.FINISHED)
            return
        groups = one.groups()
        requests = self.method.next_requests(one.problem, stage.name, groups, step)
        if not requests:
            self._end(one, EndReason.REJECTED if requests is None else EndReason.NO_REQUESTS)
            return
        for group_id in one.requests:
            del self._state.problem_of[group_id]
        if self.method.schedule.unit is Unit.PROBLEM:
            one.passed += groups
        one.requests, one.done, one.begins = {}, {}, False
        self._enter_stage(one, requests, stage.next, ready_step=step + (self.mode is Mode.PIPELINED))

    def _enter_stage(
        self, one: ProblemState, requests: list[RolloutRequest], allowed: tuple[str, ...], ready_step: int
    ) -> None:
        check_requests(self._state, self._stages, requests, allowed)
        one.stage = requests[0].stage
        for item in requests:
            one.requests[item.group_id] = item
            self._state.problem_of[item.group_id] = one.problem.problem_id
            self._state.ready_step[item.group_id] = ready_step

    def _end(self, one: ProblemState, reason: EndReason) -> None:
        for group_id in one.requests:
            del self._state.problem_of[group_id]
        del self._state.problems[one.problem.problem_id]
        groups = one.passed + one.groups()
        self._state.completed += filter(self._rewarded_at_the_end, groups)
        if self.method.schedule.unit is Unit.PROBLEM and reason is not EndReason.REJECTED:
            self._reward_late(groups, complete=reason not in (EndReason.DROPPED, EndReason.STALE))
            if all(one.reward is not None for group in groups for one in group.trajectories):
                self.method.observe_problem(groups)
                if groups and is_trained(self.method, groups, self._state.step or 0):
                    self._state.deferred += groups
        self._state.ended.append(Ended(one.problem.problem_id, one.stage, reason))
