"""What a finished training step brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.scheduler.state import SchedulerState
from marsrl_verl.core.stage import Ended


@dataclass(slots=True)
class StepResult:
    """What one training step produced; every list is sorted by id."""

    step: int
    trained: list[Group]
    """Groups that enter the loss: complete ones, with `min_group` also parts. `trained_before` names the
    trajectories that entered an earlier loss."""
    completed: list[Group]
    """All groups that completed in this step; where the end of a problem rewards a group
    (`Stage.rewarded_later`), those of the problems that ended in it. Without a reward only where a problem
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
    """Mean age in steps of the requests of the completed groups, by stage with such groups: how old the
    text is that the newest weights answered. Groups that are rewarded later are left out."""

    @classmethod
    def of(
        cls,
        state: SchedulerState,
        stages: Sequence[str],
        trained: list[Group],
        completed: list[Group],
        waiting: list[RolloutRequest],
        rewarded_later: Callable[[Group], bool],
    ) -> StepResult:
        """The result of the open step of `state`, before it is closed. `rewarded_later` says whether the end
        of its problem gives a group its rewards."""
        step = state.step or 0
        ages: dict[str, list[int]] = {}
        for group in completed:
            if not rewarded_later(group):
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
