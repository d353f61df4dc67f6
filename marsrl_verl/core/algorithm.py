"""What a method must say about itself for the scheduler and the trainer to run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.core.steps import Steps
from marsrl_verl.core.types import Group, Problem, StageInput

Credit = dict[str, tuple[tuple[int, float], ...]]
"""By sample id the advantages of its tokens: (end, advantage) of consecutive parts, the last end being the
length of the response."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One position in a method's chain."""

    name: str
    role: str


class Algorithm(ABC):
    """A method: its stages, how outputs of one become inputs of the next, and what the tokens are worth.

    What `first_inputs` and `next_inputs` return depends on their arguments, on the seed given to the
    constructor and on what was observed, in the order of steps: never on the order of completion (Rules 4
    and 5 of the design).
    """

    stages: tuple[Stage, ...]
    whole_problems: bool = False
    """Whether the groups of a problem are trained together, when the problem ends; else each group in the
    step in which it completes."""
    influence_backend: str = "auto"
    """What computes influence, where marks hold it."""

    @abstractmethod
    def first_inputs(self, problem: Problem, step: int) -> list[StageInput]:
        """The inputs of stage 0 for a new problem."""

    @abstractmethod
    def next_inputs(
        self, problem: Problem, stage_index: int, groups: list[Group], step: int
    ) -> list[StageInput] | None:
        """The inputs of stage `stage_index + 1`, once every group of the problem at `stage_index` is
        complete. `groups` is ordered by group id. Empty: the problem ends here. None: it ends, and where
        whole problems are trained, nothing of it is."""

    @abstractmethod
    def trains(self, group: Group) -> bool:
        """Whether a completed group enters the loss by itself; not asked where whole problems are trained."""

    def problem_trains(self, groups: Sequence[Group]) -> bool:
        """Whether the groups of an ended problem enter the loss, where whole problems are trained."""
        return any(self.trains(group) for group in groups)

    @abstractmethod
    def credit(self, groups: Sequence[Group]) -> Credit:
        """The advantages of the samples that enter the loss of a step, in the order of the groups."""

    def observe(  # noqa: B027  (a method need not observe anything)
        self, stage_index: int, problems: Sequence[Sequence[Group]], step: int
    ) -> None:
        """See all problems whose stage has just been completed, each with its groups, before `next_inputs` is
        called for any of them."""

    def marked_stages(self) -> frozenset[str]:
        """Stages whose complete groups need `Sample.marks` from the trainer before `next_inputs`."""
        return frozenset()

    def influence_delta(self) -> int | None:
        """Least distance in steps of the Forward Context Influence that marks hold; None: they hold none."""
        return None

    def marks_entropies(self) -> bool:
        """Whether marks hold the entropies of the tokens' distributions."""
        return False

    def cut(self, response_ids: Sequence[int]) -> Steps:
        """The steps of a response, where samples are marked."""
        raise RuntimeError(f"{type(self).__name__} marks no samples: marked_stages() is empty")

    def problems_per_step(self, configured: int) -> int:
        """How many problems the next step should have; `configured` unless the method adapts it."""
        return configured

    def observe_problem(self, groups: Sequence[Group]) -> None:  # noqa: B027
        """See all groups of a problem that has ended, where whole problems are trained; not those of one that
        `next_inputs` rejected."""

    def observe_step(
        self,
        trained: Sequence[Group],
        trained_samples: int,
        finished_problems: int,
        ended_problems: int = 0,
        held_groups: int = 0,
    ) -> dict[str, float]:
        """See what a step trains. Returns the method's own metrics of the step.

        Args:
            trained: its groups.
            trained_samples: how many samples of them have credit.
            finished_problems: problems that have passed the last stage in this step.
            ended_problems: these and the ones that ended before it, rejected ones included.
            held_groups: groups that are kept for a later step's update.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of the method itself, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved state."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")
