"""Schedule of training: units, epochs, problems of a step, and turns of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.request import Problem
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.stage import Ended
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import MethodConfig


class Unit(Choice):
    """Groups that are trained together."""

    GROUP = "group"
    """Each group in the step in which it completes."""
    PROBLEM = "problem"
    """All groups of a problem, when the problem ends."""


class EpochMode(Choice):
    """Transition from one epoch to the next."""

    CONTINUOUS = "continuous"
    """The next one begins while problems of the last one are on their way."""
    BARRIER = "barrier"
    """The next one begins when the last one's problems have ended (`Schedule.epoch_ended`)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Roles and policies that an update trains."""

    roles: frozenset[str] | None = None
    """Roles whose sequences enter the loss; None: all."""
    policies: frozenset[str] | None = None
    """Policies that are updated; None: all with weights, empty: none."""


@dataclass(frozen=True, slots=True)
class StepView:
    """A step's trained rows and ended problems, as `observe_step` of method and schedule sees them."""

    rows: Rows
    ended: Sequence[Ended]
    deferred_groups: int
    """Groups that are kept for a later step's update."""


class Schedule:
    """Decides what is trained in which step; by default every group in its own, all roles and policies
    together.

    Its state is part of the checkpoint.

    Args:
        config: the method's settings (`Method.Config`).
        tools: what the method is built with.
    """

    unit: ClassVar[Unit] = Unit.GROUP
    epoch_mode: ClassVar[EpochMode] = EpochMode.CONTINUOUS
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    """The settings that it reads: `Method.Config` is derived from it."""

    def __init__(self, config: Any, tools: MethodTools) -> None:
        self.config, self.tools = config, tools

    # --- the most that a run can come to, for the plan ---------------------------------------------

    @classmethod
    def max_problems(cls, config: Any, configured: int) -> int:
        """Most new problems of a step."""
        return configured

    @classmethod
    def max_trained(cls, config: Any) -> int | None:
        """Most responses to a problem that one step trains; None: all of its trained stages."""
        return None

    @classmethod
    def max_steps(cls, config: Any, problems: int, per_step: int) -> int | None:
        """Most steps of all epochs, where `epoch_mode` is BARRIER; None: without end.

        Args:
            config: the method's settings.
            problems: of the training data.
            per_step: as configured (`data.train_batch_size`).
        """
        return None

    # --- problems ----------------------------------------------------------------------------------

    def admits(self, problem: Problem) -> bool:
        """True if a problem of the data is used in this epoch."""
        return True

    def problems_per_step(self, configured: int) -> int:
        """Problems of the next step; `configured` unless their number is adapted."""
        return configured

    def epoch_ended(self, step: int) -> None:
        """Goes on to the next epoch, where `epoch_mode` is BARRIER: all of the data was read and trained.
        `step` is the next epoch's first."""

    def epochs_left(self) -> int | None:
        """Epochs that follow the one under way, where `epoch_mode` is BARRIER; 0: training ends with it.
        None: as many as the limits of the run allow."""
        return None

    # --- training ----------------------------------------------------------------------------------

    def trained(self, step: int) -> Trained:
        """Roles and policies that the update of a step trains."""
        return Trained()

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Sees what a step trains, after the method has. Returns metrics of the step."""
        return {}

    # --- checkpoint --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state for a checkpoint, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with a saved state."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")
