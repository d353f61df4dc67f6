"""What a method must say about itself for the scheduler and the trainer to run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.request import Plain, Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import Group, RewardResult, Trajectory


@dataclass(frozen=True, slots=True)
class Stage:
    """One position in a method's course."""

    name: str
    role: str
    next: tuple[str, ...] = ()
    """Stages that may follow; none: a problem ends here."""


class Unit(str, Enum):
    """What is trained together."""

    GROUP = "group"
    """Each group in the step in which it completes."""
    PROBLEM = "problem"
    """All groups of a problem, when the problem ends."""


class Passes(str, Enum):
    """How passes over the data follow each other."""

    CONTINUOUS = "continuous"
    """The next one begins while problems of the last one are on their way."""
    DRAINED = "drained"
    """The next one begins when the last one's problems have ended (`Method.pass_ended`)."""


class EndReason(str, Enum):
    """Why a problem leaves the scheduler."""

    FINISHED = "finished"
    """It passed a last stage."""
    NO_REQUESTS = "no_requests"
    """No output of its last stage was eligible for a next one."""
    NOT_ASKED = "not_asked"
    """The method asks nothing about it: its prompt exceeds the first role's limit."""
    REJECTED = "rejected"
    """The method does not want to train on it."""
    DROPPED = "dropped"
    """Its waiting requests were dropped."""
    STALE = "stale"
    """All requests of its stage had waited too long."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A problem that left the scheduler and the last stage at which it was."""

    problem_id: str
    stage: str
    reason: EndReason


@dataclass(frozen=True, slots=True)
class Probe:
    """What the trainer's own forward pass finds out about sequences at the end of a stage.

    Every probe's pass annotates the log-probabilities under the trainer's weights
    (`trainer_log_probs`), and those of tokens that these very weights sampled (`recorded_log_probs`).
    """

    name: str
    measure: str | None = None
    """`package.module:Class` of what is measured on the ranks beside them; None: nothing."""
    settings: Mapping[str, Plain] = field(default_factory=dict)
    inputs: Callable[[TokenSequence], dict[str, NDArray[Any]]] | None = None
    """The (T,) columns that `measure` reads."""
    outputs: tuple[str, ...] = ()
    """The (T,) annotations that it writes."""
    entropies: bool = False
    """Whether the tokens' entropies are annotated too (`recorded_entropies`)."""
    shares_prefixes: bool = True
    """Whether common beginnings may be computed once; False where `measure` reads whole rows."""


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step trained and what became of its problems, for `Method.observe_step`."""

    rows: Rows
    ended: Sequence[Ended]
    deferred_groups: int
    """Groups that are kept for a later step's update."""


class Method(ABC):
    """A method: its stages, how the outputs of one become requests of another, and what tokens are worth.

    What `first_requests` and `next_requests` return depends on their arguments, on the seed given to the
    constructor and on what was observed, in the order of steps: never on the order of completion (Rules 4
    and 5 of the design).
    """

    stages: tuple[Stage, ...]
    """The first one is where problems begin, unless `first_requests` names another."""
    unit: Unit = Unit.GROUP
    passes: Passes = Passes.CONTINUOUS
    late_stages: frozenset[str] = frozenset()
    """Stages whose trajectories may come back without a reward, since `late_rewards` gives it."""

    # --- requests ------------------------------------------------------------------------------

    def admits(self, problem: Problem) -> bool:
        """Whether a problem of the data is to be asked in this pass."""
        return True

    def problems_per_step(self, configured: int) -> int:
        """How many problems the next step should have; `configured` unless the method adapts it."""
        return configured

    def pass_ended(self, step: int) -> None:  # noqa: B027  (most methods have no phases)
        """The data is through and nothing is in flight, where `passes` is drained."""

    @abstractmethod
    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """The requests of a new problem, all of one stage. Empty: it is not asked."""

    def observe_stage(  # noqa: B027
        self, stage: str, problems: Sequence[Sequence[Group]], step: int
    ) -> None:
        """See all problems whose stage has just been completed, each with its groups, before `next_requests`
        is called for any of them."""

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest] | None:
        """The requests that follow a stage, once every group of the problem there is complete; all of one
        stage among `Stage.next`. `groups` is ordered by group id. Empty: the problem ends here. None: it is
        rejected; it ends, and where problems are trained, nothing of it is."""
        return []

    def probes(self, stage: str) -> tuple[Probe, ...]:
        """What the trainer finds out about the sequences of a stage before `observe_stage`."""
        return ()

    # --- training ------------------------------------------------------------------------------

    def late_rewards(self, groups: Sequence[Group]) -> Mapping[str, RewardResult]:
        """Rewards by trajectory id that only a complete unit tells."""
        return {}

    @abstractmethod
    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether a complete unit has anything to train."""

    @abstractmethod
    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """The sequences that enter the loss of a step, before any log-probability is known, in the order of
        the groups."""

    @abstractmethod
    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """(N,) the advantage of every token; log-probabilities and probes are known."""

    def masks(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """(N,) tokens that are left out of the loss and still count in its normaliser; None: no token."""
        return None

    def train_policies(self, step: int, trained: frozenset[str]) -> frozenset[str]:
        """The policies whose turn it is, of those with weights."""
        return trained

    # --- observation ---------------------------------------------------------------------------

    def observe_problem(self, groups: Sequence[Group]) -> None:  # noqa: B027
        """See all groups of a problem that has ended, where problems are trained; not those of one that
        `next_requests` rejected."""

    def observe_step(self, view: StepView) -> dict[str, float]:
        """See what a step trains. Returns the method's own metrics of the step."""
        return {}

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Plain]:
        """What a line of the rollout log says of a trajectory beside the usual fields."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of the method itself, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved state."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")
