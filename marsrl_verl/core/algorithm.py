"""What a method must say about itself for the scheduler to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from marsrl_verl.core.types import Group, Problem, StageInput


@dataclass(frozen=True, slots=True)
class Stage:
    """One position in a method's chain."""

    name: str
    role: str


class Algorithm(Protocol):
    """A method: its stages and how outputs of one become inputs of the next.

    All methods are pure functions of their arguments and the seed given to the constructor, so that
    the same groups are formed whatever the order of completion (Rules 4 and 5 of the design).
    """

    stages: tuple[Stage, ...]

    def first_inputs(self, problem: Problem, step: int) -> list[StageInput]:
        """The inputs of stage 0 for a new problem."""
        ...

    def next_inputs(
        self, problem: Problem, stage_index: int, groups: list[Group], step: int
    ) -> list[StageInput]:
        """The inputs of stage `stage_index + 1`, once every group of the problem at `stage_index` is
        complete. `groups` is ordered by group id. Empty: the problem ends here."""
        ...

    def trains(self, group: Group) -> bool:
        """Whether a completed group enters the loss (role trained, rewards not all equal)."""
        ...
