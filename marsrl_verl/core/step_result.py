"""What the scheduler hands out: a step's results, and inputs that are not fully answered."""

from __future__ import annotations

from dataclasses import dataclass

from marsrl_verl.core.scheduler_state import Ended
from marsrl_verl.core.types import Group, StageInput


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
    """Groups that enter the loss: complete ones, with `min_group` also parts. `trained_before` names the
    samples that entered an earlier loss."""
    completed: list[Group]
    """All groups that completed in this step."""
    ended: list[Ended]
    """Problems that left in this step."""
    waiting: dict[str, int]
    """Inputs that wait for a coming round, by stage (every stage is listed)."""
    in_flight: int
    """Inputs that were handed out and are not fully answered."""
    unfinished: int
    """Samples that wait for their next segment."""
    held: int
    """Groups to train that wait until there are enough for an update."""
    stale: int
    """Inputs that were dropped in this step, because they had waited too long."""
    oldest_waiting: dict[str, int]
    """Age in steps of the oldest waiting input, by stage; 0 where none waits."""
    input_ages: dict[str, float]
    """Mean age in steps of the inputs of the completed groups, by stage with such groups: how old the
    text is that the newest weights answered."""
