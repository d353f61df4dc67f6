"""Checks of a scheduler's settings, of the method's requests and of the engine's outputs, before any of them
is taken."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from marsrl_verl.core.method import Method
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.schedule import Unit
from marsrl_verl.core.scheduler.state import SchedulerState
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import Fork, RolloutOutput, Trajectory


def check_settings(
    method: Method,
    step_prompt_budget: int | None,
    min_group: int | None,
    min_groups: int,
    max_request_staleness: int | None,
) -> None:
    """Checks a scheduler's settings. Raises ValueError: one is out of range, or the method cannot be
    scheduled so."""
    if step_prompt_budget is not None and step_prompt_budget < 1:
        raise ValueError(
            f"step_prompt_budget is {step_prompt_budget}, expected at least 1, or null for no limit"
        )
    if min_group is not None and min_group < 2:
        raise ValueError(f"min_group is {min_group}, expected at least 2 trajectories to compare, or null")
    if min_groups < 1:
        raise ValueError(f"min_groups is {min_groups}, expected at least 1")
    if max_request_staleness is not None and max_request_staleness < 1:
        raise ValueError(
            f"max_request_staleness is {max_request_staleness}, expected at least 1 (a request's first turn "
            "is the step after the one that made it), or null"
        )
    for name, value in (("min_group", min_group), ("max_request_staleness", max_request_staleness)):
        if value is not None and method.schedule.unit is Unit.PROBLEM:
            raise ValueError(
                f"{name} is {value}, but {type(method).__name__} trains whole problems: set it to null"
            )
    later = sorted(stage.name for stage in method.stages(method.config) if stage.deferred_reward)
    if min_group is not None and later:
        raise ValueError(
            f"min_group is {min_group}, but {type(method).__name__} rewards complete groups only, at the "
            f"stages {', '.join(later)}: set it to null"
        )


def check_requests(
    state: SchedulerState,
    stages: Mapping[str, Stage],
    requests: Sequence[RolloutRequest],
    allowed: Collection[str],
) -> None:
    """Checks the requests, at least one, that a method makes for a problem. Raises ValueError: one is of a
    stage that may not follow (`allowed`) or of another stage than the first, its group id is in use, or its
    workflow is not its stage's; the message has the group id."""
    stage, seen = requests[0].stage, set[str]()
    if stage not in allowed:
        raise ValueError(
            f"request {requests[0].group_id}: found stage {stage}, expected one of: {', '.join(allowed)}"
        )
    for item in requests:
        if item.group_id in seen or item.group_id in state.problem_of:
            raise ValueError(f"request {item.group_id}: the method gave this group id twice")
        seen.add(item.group_id)
        if item.stage != stage or item.n < 1:
            raise ValueError(
                f"request {item.group_id}: found stage {item.stage} and n={item.n}, expected stage "
                f"{stage}, as its problem's other requests, and n of at least 1"
            )
        if item.rollout != stages[stage].workflow:
            raise ValueError(
                f"request {item.group_id}: found the workflow {item.rollout!r}, expected that of its "
                f"stage: {stages[stage].workflow}"
            )


def check_output(state: SchedulerState, stages: Mapping[str, Stage], output: RolloutOutput) -> None:
    """Checks one group's output against its request. Raises ValueError: the group is not in flight,
    trajectories are missing, or one of them is unknown, came twice, had ended before, is not scored, or does
    not go on where its last round ended, or it left another one; the message has its id."""
    pending = state.pending.get(output.group_id)
    if pending is None or not pending.in_flight:
        raise ValueError(
            f"group {output.group_id} is not in flight: it was never dispatched, or its round is back already"
        )
    request = state.request(output.group_id)
    check_members(request, pending.members, output)
    members = pending.members | {one.number: one for one in output.trajectories}
    for one in output.trajectories:
        if not one.paused:
            _check_reward(one, late=stages[request.stage].deferred_reward)
        if one.fork is not None and one.number not in pending.members:
            _check_fork(one, one.fork, {other.trajectory_id: other for other in members.values()})


def check_members(request: RolloutRequest, before: Mapping[int, Trajectory], output: RolloutOutput) -> None:
    """Checks that a round brings the trajectories that a request asked for, given those before it by number.
    Raises ValueError: a trajectory is unknown, came twice, had ended before, or does not go on where its last
    round ended; or some are missing."""
    seen: set[str] = set()
    for one in output.trajectories:
        if one.trajectory_id in seen:
            raise ValueError(f"trajectory {one.trajectory_id} came twice")
        seen.add(one.trajectory_id)
        if one.group_id != request.group_id or one.number >= request.n:
            raise ValueError(
                f"trajectory {one.trajectory_id}: unknown, group {request.group_id} has trajectories "
                f"{request.group_id}#0 to #{request.n - 1}"
            )
        earlier = before.get(one.number)
        if earlier is not None and not earlier.paused:
            raise ValueError(f"trajectory {one.trajectory_id} had ended, and came again")
        _check_beginning(request, earlier, one)
    open_ids = {one.trajectory_id for one in before.values() if one.paused}
    if missing := sorted(open_ids - seen):
        raise ValueError(f"trajectory {missing[0]}: it was to be continued and did not come back")
    numbers = {one.number for one in output.trajectories} | set(before)
    if output.state is None and len(numbers) != request.n:
        raise ValueError(
            f"group {output.group_id}: {len(numbers)} trajectories, expected {request.n}; a group that "
            "begins more of them later has a state"
        )


def _check_fork(one: Trajectory, fork: Fork, members: dict[str, Trajectory]) -> None:
    """Checks that a fork begins with the tokens that it shares: trees of advantages rely on it."""
    if fork.trajectory_id not in members:
        raise ValueError(f"trajectory {one.trajectory_id} left the unknown trajectory {fork.trajectory_id}")
    left, same = members[fork.trajectory_id].sequences, False
    if fork.sequence < min(len(left), len(one.sequences)):
        ids, others = one.sequences[fork.sequence].response_ids, left[fork.sequence].response_ids
        same = fork.token <= len(others) and np.array_equal(ids[: fork.token], others[: fork.token])
    if not same:
        raise ValueError(
            f"trajectory {one.trajectory_id} left {fork.trajectory_id} after {fork.token} tokens of sequence "
            f"{fork.sequence}, and does not begin with them"
        )


def _check_reward(one: Trajectory, *, late: bool) -> None:
    if one.reward is None:
        if not late:
            raise ValueError(f"trajectory {one.trajectory_id}: not scored, score it before absorb")
    elif not math.isfinite(one.reward.value):
        raise ValueError(f"trajectory {one.trajectory_id}: reward {one.reward.value} is not a finite number")


def _check_beginning(request: RolloutRequest, before: Trajectory | None, one: Trajectory) -> None:
    """Checks that a trajectory begins with its earlier tokens: what was sampled stays as it is."""
    earlier = (
        before.sequences if before is not None else [request.prefix] if request.prefix is not None else []
    )
    if len(one.sequences) < len(earlier):
        raise ValueError(
            f"trajectory {one.trajectory_id}: has {len(one.sequences)} sequences, and had {len(earlier)}"
        )
    for sequence, begun in zip(one.sequences, earlier, strict=False):
        length = len(begun)
        if not np.array_equal(sequence.response_ids[:length], begun.response_ids):
            raise ValueError(
                f"trajectory {one.trajectory_id}: does not begin with the {length} tokens of its earlier "
                "rounds"
            )
