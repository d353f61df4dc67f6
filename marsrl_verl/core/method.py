"""What a method says about itself: its settings and plan, its stages, and what its tokens are worth.

A method is a class derived from `Method`, in one folder or module, here or anywhere else. Checks, plan,
scheduler and trainer find it through `algos.registry` and know no method by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.group import Group
from marsrl_verl.core.prompts import NO_PROBLEM, Prompts, PromptShape
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import MethodConfig
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.issues import ConfigIssue


@dataclass(frozen=True, slots=True)
class Stage:
    """One position in a method's course."""

    name: str
    role: str
    next: tuple[str, ...] = ()
    """Stages that may follow; none: a problem ends here."""


class Unit(Choice):
    """What is trained together."""

    GROUP = "group"
    """Each group in the step in which it completes."""
    PROBLEM = "problem"
    """All groups of a problem, when the problem ends."""


class Passes(Choice):
    """How passes over the data follow each other."""

    CONTINUOUS = "continuous"
    """The next one begins while problems of the last one are on their way."""
    DRAINED = "drained"
    """The next one begins when the last one's problems have ended (`Method.pass_ended`)."""


class EndReason(Choice):
    """Why a problem leaves the scheduler."""

    FINISHED = "finished"
    """It passed a last stage."""
    NO_REQUESTS = "no_requests"
    """No output of its last stage was eligible for a next one."""
    SKIPPED = "skipped"
    """The method requests nothing for it: a prompt exceeds its role's limit (`Method.opening_prompts`)."""
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
class LossSpec:
    """The policy loss of a method's updates, where it is not verl's. Clipping, entropy bonus, KL term and
    mean are settings (`actor_rollout_ref.actor`, `marsrl.training.loss_mean`)."""

    name: str | None = None
    """`package.module:function`, with the arguments of verl's registered policy losses, or a name in verl's
    registry; None: `actor_rollout_ref.actor.policy_loss.loss_mode`."""
    columns: tuple[str, ...] = ()
    """What it reads of each response token beside verl's arguments, by name: annotations of the sequences
    (`turn`, `Method.annotations`; NaN or -1 where a sequence has none) or columns of the step
    (`core.rows`)."""
    settings: Mapping[str, Plain] = field(default_factory=dict)
    """What else it is told."""
    clips: bool = False
    """Whether it clips the importance ratio as verl's usual one does, so that the start warns where that
    ratio can only be 1."""
    widest_clip: float | None = None
    """A clip range above it hardly ever acts, since the ratio stays near to 1, and the start says so. None:
    any may act."""
    ratio_bound: tuple[str, float] | None = None
    """The setting that bounds the ratio before it is clipped, and the bound. Where the clip comes first for
    every ratio, the start says that it can't act. None: there is none, or it acts on parts of a ratio."""


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step trained and what became of its problems, for `Method.observe_step`."""

    rows: Rows
    ended: Sequence[Ended]
    deferred_groups: int
    """Groups that are kept for a later step's update."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage and the most it can hold."""

    name: str
    role: str
    groups_per_problem: int
    """Upper bound: fewer when no output is eligible as an input."""
    trained: bool
    """Whether its role enters the loss."""
    group_size: int
    """Responses of a group."""
    rows_per_response: int = 1
    """Most sequences of a response that are trained."""
    writers: tuple[str, ...] = ()
    """Roles that write a response together, each a sequence of it; none: `role` alone."""

    @property
    def samples_per_problem(self) -> int:
        """Most responses to one problem at this stage."""
        return self.groups_per_problem * self.group_size

    def written_by(self, frozen: Container[str]) -> tuple[str, ...]:
        """The roles that write its responses, without those whose policy is frozen."""
        return tuple(role for role in self.writers or (self.role,) if role not in frozen)


@dataclass(frozen=True, slots=True)
class MethodTools:
    """What a method is built with, beside its settings."""

    prompts: Any
    """The object of `marsrl.prompts`."""
    tokenizer: Any
    """The model's."""
    prompt_tokens: Callable[[tuple[Message, ...]], int]
    """Tokens of a chat under the model's template, generation prompt included."""
    problems: int
    """Problems per step as configured (`data.train_batch_size`)."""


class RunView(Protocol):
    """A configuration as a method's checks see it."""

    @property
    def settings(self) -> Any:
        """The `marsrl` node, typed; `settings.algo` is the method's `Config`."""

    @property
    def on_cpu(self) -> bool:
        """Whether the run trains on the processor."""

    @property
    def frozen_roles(self) -> Mapping[str, str]:
        """The roles that are not trained here, with the names of their policies."""

    def get(self, key: str) -> Any:
        """The value of any dotted key, verl's included; None where it is missing."""

    def prompts(self) -> Any:
        """The object of `marsrl.prompts`."""

    def model_config(self) -> dict[str, Any] | None:
        """What the model's `config.json` says, with the configured overrides; None where it is not here."""


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
    """Stages whose trajectories may come back without a reward, since `late_rewards` gives it. Where whole
    problems are trained, their groups are in the log and in the metrics of the step in which the problem
    ends."""

    # --- settings ------------------------------------------------------------------------------

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    """The settings of `marsrl.algo`."""
    Evaluation: ClassVar[type[EvaluationConfig]] = EvaluationConfig
    """The settings of `marsrl.evaluation`."""
    Prompts: ClassVar[type[Prompts]] = Prompts
    """What the class of `marsrl.prompts` has to be derived from."""
    default_prompts: ClassVar[str] = "marsrl_verl.core.prompts:ProblemPrompts"
    """That class, where the configuration names none."""
    roles: ClassVar[tuple[str, ...]]
    """Roles that are asked, in training or in the evaluation of the method. None is called `default`."""
    answering_roles: ClassVar[tuple[str, ...]] = ()
    """Roles whose responses answer the problem: what a reward function of verl's scores. Where there are any,
    the start warns of data that ask another role for an answer."""
    rewards: ClassVar[Mapping[str, str]] = {}
    """By role, the reward class (`package.module:Class`) of those that are scored otherwise than by the
    presets' one (`marsrl.reward.default`)."""
    rollouts: ClassVar[tuple[str, ...]] = ("single_call",)
    """The rollout programs of its requests: a built-in one's name, or `package.module:Class`."""
    rollout: ClassVar[str] = "single_call"
    """The one that answers a problem in the evaluation that methods have by default."""
    text_roles: ClassVar[frozenset[str]] = frozenset()
    """Roles of which text is enough: a frozen policy may play them (`marsrl.policies`)."""
    stop_strings: ClassVar[frozenset[str]] = frozenset()
    """Strings that end a message in its rollouts, those of frozen policies as well."""
    records_log_probs: ClassVar[bool] = False
    """Whether `marsrl.off_policy.mode = recorded` finds the trainer's log-probabilities of a sample."""
    group_relative: ClassVar[bool] = True
    """Whether advantages are those that verl calls `grpo`."""
    kl_in_reward: ClassVar[bool] = False
    """Whether advantages count what tokens lose for KL (column `kl_penalties`, `algorithm.use_kl_in_reward`),
    as those of `core.advantages` do."""
    notes_turns: ClassVar[bool] = False
    """Whether its rollouts note the turn of a token (annotation `turn`), which `marsrl.training.loss_mean`
    averages over."""
    annotations: ClassVar[frozenset[str]] = frozenset()
    """What its rollouts and probes note of tokens beside the turn, and its policy loss reads
    (`LossSpec.columns`). A sequence need not have it."""
    fused_kernels: ClassVar[bool] = True
    """Whether the trainer's forward pass may spare the logits of all tokens."""
    preset_values: ClassVar[Mapping[str, float]] = {}
    """verl's settings, by key, that the method's presets set and that may stay where they can't act: clip
    ranges for runs with several updates, what goes with a KL term that is switched off."""
    resumable: ClassVar[frozenset[str]] = frozenset()
    """Own settings that may change when a run continues; the others are bound to the checkpoint."""

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> Method:
        """Build the method from checked settings (the whole `marsrl` node); by itself its constructor is
        given both."""
        return cls(settings, tools)  # type: ignore[call-arg]

    @classmethod
    @abstractmethod
    def plan(cls, config: Any) -> tuple[StagePlan, ...]:
        """The stages with the most they can hold; `config` is a `Config`."""

    @classmethod
    def most_problems(cls, config: Any, configured: int) -> int:
        """Most new problems of a step."""
        return configured

    @classmethod
    def most_trained(cls, config: Any) -> int | None:
        """Most responses to a problem that one step trains; None: all of its trained stages (`plan`)."""
        return None

    @classmethod
    def first_role(cls, config: Any) -> str:
        """The role of the first stage, which is asked the problems as the data has them."""
        return cls.plan(config)[0].role

    @classmethod
    def active_roles(cls, config: Any, evaluation: Any | None) -> tuple[str, ...]:
        """The roles that take part in a run: engine and trainer are sized for them.

        Args:
            config: a `Config`.
            evaluation: an `Evaluation`; None: those of training alone.
        """
        return cls.roles

    @classmethod
    def opening_prompts(
        cls, config: Any, prompts: Any, problem: Problem
    ) -> Mapping[str, tuple[Message, ...]]:
        """The chats that decide whether a problem is asked, by role: `first_requests` returns nothing where
        one of them exceeds its role's limit. They are what the first role is sent, and, of a role that is
        shown more of the problem, the shortest that it can be sent. Checks and
        `data.filter_overlong_prompts` measure them."""
        return {cls.first_role(config): prompts.problem(problem)}

    @classmethod
    def prompt_shapes(cls, config: Any, prompts: Any) -> tuple[PromptShape, ...]:
        """What the prompts of each role are made of, for the plan; by default those of the first role."""
        return (PromptShape(cls.first_role(config), prompts.problem(NO_PROBLEM)),)

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """Rules between several settings, of the method's own and of others."""
        return []

    @classmethod
    def file_checks(cls, run: RunView) -> list[ConfigIssue]:
        """Rules that look at the prompts' class or at the model's files; `checks` found nothing."""
        return []

    @classmethod
    def loss(cls, config: Any) -> LossSpec:
        """The policy loss of its updates; `config` is a `Config`."""
        return LossSpec()

    @classmethod
    def grammar_roles(cls, config: Any) -> frozenset[str]:
        """Trained roles whose tokens the engine chooses among those that a grammar allows: its
        log-probabilities then are not the trainer's. `config` may hold choices as plain words."""
        return frozenset()

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """What the printed plan says below the table of stages."""
        return []

    # --- evaluation ----------------------------------------------------------------------------

    @classmethod
    def evaluation(cls, config: Any, evaluation: Any, prompts: Any) -> Any:
        """How what it trains is evaluated, an `evaluation.runs.Evaluation`; None: the first role answers
        (`evaluation.single_role.SingleRole`).

        Args:
            config: a `Config`.
            evaluation: an `Evaluation`.
            prompts: the object of `marsrl.prompts`.
        """
        return None

    @classmethod  # noqa: B027
    def check_held_out(cls, problem: Problem) -> None:
        """Look at a held-out row when a run starts.

        Raises:
            ValueError: its evaluation can't use what the row brings along in `extra_info`.
        """

    @classmethod
    def evaluation_calls(cls, config: Any, evaluation: Any) -> Mapping[str, int]:
        """Most responses of each role in one run of its evaluation."""
        return {cls.first_role(config): 1}

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float] | None:
        """What scored groups of one role, or of one stage, say beside the figures that all have, by name.
        None: how many answers are right (`evaluation.single_role.answer_metrics`)."""
        return None

    @classmethod
    def outcome(cls, request: RolloutRequest, trajectory: Trajectory) -> tuple[str, str | None] | None:
        """What a scored trajectory decided, and which decision was right as far as that is known, where its
        role has few to decide between: a verdict, an action. A run warns of a role that always decides alike
        (`marsrl.watch.one_outcome`). None: it decides nothing."""
        return None

    @classmethod
    def most_steps(cls, config: Any, problems: int, per_step: int) -> int | None:
        """The most steps that all passes take, for the plan, if `passes` is drained. None: without end.

        Args:
            problems: of the training data.
            per_step: as configured (`data.train_batch_size`).
        """
        return None

    # --- requests ------------------------------------------------------------------------------

    def admits(self, problem: Problem) -> bool:
        """Whether a problem of the data is to be asked in this pass."""
        return True

    def problems_per_step(self, configured: int) -> int:
        """How many problems the next step should have; `configured` unless the method adapts it."""
        return configured

    def pass_ended(self, step: int) -> None:  # noqa: B027  (most methods have no phases)
        """Where `passes` is drained: the data is through, and all of it was trained. `step` is the first one
        of the next pass."""

    def passes_left(self) -> int | None:
        """Where `passes` is drained: how many follow the one that is under way; 0: training ends with it.
        None: as many as the limits of the run allow."""
        return None

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
        """(N,) the advantage of every token; log-probabilities, the reference policy's where KL asks for it,
        and probes are known."""

    def masks(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """(N,) tokens that are left out of the loss and still count in its normaliser; None: no token."""
        return None

    @property
    def masks_by_entropy(self) -> bool:
        """Whether `masks` looks at entropies under the weights about to be updated: rows whose
        log-probabilities are recorded are then computed again."""
        return False

    def token_shares(self, rows: Rows, advantages: NDArray[np.float32]) -> Mapping[str, NDArray[np.bool_]]:
        """(N,) tokens whose share among the trained ones is logged, by the metric's name."""
        return {}

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
        """What a line of the rollout log says of a trajectory in addition to the usual fields. It has a
        reward: those whose problem ended before `late_rewards` gave one are left out."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of the method itself, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved state."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")
