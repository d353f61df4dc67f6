"""A method: roles, stages, schedule and credit, and the course of a problem through the stages.

A method is a class derived from `Method`, in one folder or module, here or anywhere else. Checks, plan,
scheduler and trainer find it through `algos.registry` and know no method by name. Every member has a default:
one role, one stage with a group of responses to each problem, every group trained in its step relative to
itself. A subclass says what is different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from numpy.typing import NDArray

from marsrl_verl.core import prompts as prompts_module
from marsrl_verl.core.credit import Credit, EstimatorConfig, EstimatorCredit
from marsrl_verl.core.group import Group
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape, Shown, no_text
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef
from marsrl_verl.core.schedule import Schedule, StepView
from marsrl_verl.core.sequence import Plain
from marsrl_verl.core.sequence import Sequence as TokenSequence
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.settings.declaration import MethodConfig
from marsrl_verl.settings.evaluation import EvaluationConfig


@dataclass(frozen=True, slots=True)
class Role:
    """A writer of responses, in training or in the evaluation of a method."""

    answers: bool = False
    """If true, its responses answer the problem, and reward functions of verl's score them. If any role's do,
    the start warns of data that ask another role for an answer."""
    reward: str | None = None
    """Its reward class (`package.module:Class`), where the configuration names none; None: the presets'
    (`marsrl.reward.default`)."""
    may_be_frozen: bool = False
    """If true, its text alone is enough, so that a frozen policy may play it (`marsrl.policies`)."""
    source_reward: str | None = None
    """Name of the request input that holds the reward of the trajectory it was built from, which this role's
    reward reads. When recorded rollouts are graded again, the new reward of that trajectory is used."""


@dataclass(frozen=True, slots=True)
class View:
    """A method's declaration for the page of a run (docs/guides/view.md), which finds stages, forks and
    messages in the rollouts."""

    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Columns of tokens in the fields of `Method.record`, by name: the field with the ends of consecutive
    parts of a response, and the one with the parts' values."""
    silent: frozenset[str] = frozenset()
    """Roles that must not tell the answer: the page warns where their responses have it."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts of a method's rollouts and loss that trainer, checks and reports need."""

    stores_trainer_log_probs: bool = False
    """If true, samples have the trainer's log-probabilities for `marsrl.off_policy.mode = recorded`."""
    fused_kernels: bool = True
    """If true, the trainer's forward pass may do without the logits of all tokens."""
    has_turn_ids: bool = False
    """If true, its rollouts note the turn of each token (annotation `turn`), for means over turns
    (`marsrl.training.loss_mean`)."""
    annotations: frozenset[str] = frozenset()
    """Annotations of tokens beside the turn that its rollouts and probes write and its policy loss reads
    (`LossSpec.columns`). A sequence need not have them."""
    stop_strings: frozenset[str] = frozenset()
    """Strings that end a message in its rollouts, those of frozen policies as well."""
    grammar_roles: frozenset[str] = frozenset()
    """Trained roles whose tokens the engine chooses among those that a grammar allows: its
    log-probabilities then are not the trainer's."""
    view: View = View()
    """Its declaration for the page of a run."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement of sequences by the trainer's own forward pass at the end of a stage.

    Every probe's pass annotates the log-probabilities under the trainer's weights
    (`trainer_log_probs`), and those of tokens that these very weights sampled (`recorded_log_probs`).
    """

    name: str
    measure: str | None = None
    """`package.module:Class` of a measure that runs on the ranks beside them; None: no other."""
    settings: Mapping[str, Plain] = field(default_factory=dict)
    inputs: Callable[[TokenSequence], dict[str, NDArray[Any]]] | None = None
    """The (T,) columns that `measure` reads."""
    outputs: tuple[str, ...] = ()
    """The (T,) annotations that it writes."""
    entropies: bool = False
    """If true, the tokens' entropies are annotated too (`recorded_entropies`)."""
    shares_prefixes: bool = True
    """If true, common beginnings may be computed once; False where `measure` reads whole rows."""


class Method:
    """A method: its roles, stages, schedule and credit, and how the outputs of a stage become requests.

    What `first_requests` and `next_requests` return depends on their arguments, on the seed and on what was
    observed, in the order of steps: never on the order of completion.

    Args:
        config: its settings, a `Config`.
        tools: prompts, their limits, and what else it may need.
    """

    Config: ClassVar[type[MethodConfig]] = EstimatorConfig
    """The settings of `marsrl.algo`, with the checks between them."""
    Evaluation: ClassVar[type[EvaluationConfig]] = EvaluationConfig
    """The settings of `marsrl.evaluation`."""
    Prompts: ClassVar[type[prompts_module.Prompts]] = prompts_module.ProblemPrompts
    """The class of `marsrl.prompts` where the configuration names none. Others are derived from its
    interface (`core.prompts.interface`)."""
    Credit: ClassVar[type[Credit]] = EstimatorCredit
    """The class that computes advantages and masks of tokens."""
    Schedule: ClassVar[type[Schedule]] = Schedule
    """The class that decides what is trained in which step."""
    roles: ClassVar[Mapping[str, Role]] = {"solver": Role(answers=True)}
    """Roles by name, in the order of reports. None is called `default`."""

    def __init__(self, config: Any, tools: MethodTools) -> None:
        self.config, self.tools, self.prompts = config, tools, tools.prompts
        self.credit, self.schedule = self.Credit(config), self.Schedule(config, tools)

    # --- the plan: classmethods of the settings alone -----------------------------------------------

    @classmethod
    def stages(cls, config: Any) -> tuple[Stage, ...]:
        """The stages; the first one is where problems begin, unless `first_requests` names another."""
        role = next(iter(cls.roles))
        return (Stage(role, role, config.group_size),)

    @classmethod
    def traits(cls, config: Any) -> Traits:
        """Facts that trainer and checks need. `config` may hold choices as plain words."""
        return Traits()

    @classmethod
    def active_roles(cls, config: Any, evaluation: Any | None) -> tuple[str, ...]:
        """The roles that take part in a run: engine and trainer are sized for them.

        Args:
            config: a `Config`; may hold choices as plain words.
            evaluation: an `Evaluation`; None: those of training alone.
        """
        return tuple(cls.roles)

    @classmethod
    def opening_prompts(
        cls, config: Any, prompts: Any, problem: Problem
    ) -> Mapping[str, tuple[Message, ...]]:
        """The chats that decide whether a problem is used, by role: nothing is requested if one of them
        exceeds its role's limit. They are the first role's prompt and, for a role that is shown more of the
        problem, the shortest prompt that it can have. Checks and `data.filter_overlong_prompts` measure
        them."""
        return {cls.stages(config)[0].role: prompts.problem(problem)}

    @classmethod
    def prompt_shapes(
        cls, config: Any, prompts: Any, problem: Problem = NO_PROBLEM, shown: Shown = no_text
    ) -> tuple[PromptShape, ...]:
        """The parts of each role's prompts, worded around a problem and what stands for responses:
        nothing for the plan, placeholders for a model card. By default the opening ones."""
        chats = cls.opening_prompts(config, prompts, problem)
        return tuple(PromptShape(role, chat) for role, chat in chats.items())

    # --- evaluation ---------------------------------------------------------------------------------

    @classmethod
    def evaluation(cls, config: Any, evaluation: Any, prompts: Any) -> Any:
        """The evaluation of what it trains, an `evaluation.runs.Evaluation`; None: the first stage's role
        answers by that stage's rollout (`evaluation.single_role.SingleRole`).

        Args:
            config: a `Config`.
            evaluation: an `Evaluation`.
            prompts: the object of `marsrl.prompts`.
        """
        return None

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float] | None:
        """Metrics of scored groups of one role, or of one stage, beside those that all have, by name. None:
        the share of right answers (`evaluation.single_role.answer_metrics`)."""
        return None

    @classmethod
    def outcome(cls, request: RolloutRequest, trajectory: Trajectory) -> tuple[str, str | None] | None:
        """The decision of a scored trajectory, and the right one if it is known, where its role chooses
        between few: a verdict, an action. A run warns of a role that always decides alike
        (`marsrl.watch.one_outcome`). None: it decides nothing."""
        return None

    @classmethod
    def trial(cls, role: str, index: int, number: int) -> tuple[str, Mapping[str, Plain]]:
        """The text that a role writes in the trial before a run starts (`testing.trial`), and its reward's
        findings (`RewardResult.info`); together they must lead to each of the stages. By default a boxed
        number.

        Args:
            role: the role that writes.
            index: number of the trajectory in its group; even ones are rewarded.
            number: messages that the role has written in it before.
        """
        return f"\\boxed{{{index}}}", {"answer": str(index)}

    # --- the course of a problem --------------------------------------------------------------------

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """The requests of a new problem, all of one stage. Empty: it is skipped. By default one group of the
        first stage, if all opening prompts are within their limits."""
        stage, chats = self.stages(self.config)[0], fitting_prompts(self, problem)
        return [stage.request(problem, chats[stage.role], step)] if chats else []

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest] | None:
        """The requests that follow a stage, once every group of the problem there is complete; all of one
        stage among its `next`. `groups` is ordered by group id. Empty: the problem ends here. None: it is
        rejected: it ends, and where whole problems are trained, nothing of it is trained."""
        return []

    def observe_stage(self, stage: str, problems: Sequence[Sequence[Group]], step: int) -> None:
        """Sees all problems whose stage has just been completed, each with its groups, before `next_requests`
        is called for any of them."""

    def probes(self, stage: str) -> tuple[Probe, ...]:
        """Measurements of a stage's sequences that the trainer takes before `observe_stage`."""
        return ()

    def deferred_rewards(self, groups: Sequence[Group]) -> Mapping[str, RewardResult]:
        """Rewards, by trajectory id, that are known only when a unit is complete."""
        return {}

    # --- observation --------------------------------------------------------------------------------

    def observe_problem(self, groups: Sequence[Group]) -> None:
        """Sees all groups of a problem that has ended, where problems are trained; not those of one that
        `next_requests` rejected."""

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Sees what a step trains. Returns the method's own metrics of the step."""
        return {}

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Plain]:
        """Fields of a trajectory's line in the rollout log, beside the usual ones. The trajectory has a
        reward: those whose problem ended before `deferred_rewards` gave one are left out."""
        return {"answer": trajectory.scored.info.get("answer")}

    def state_dict(self) -> dict[str, Any]:
        """The method's own state for a checkpoint, beside its schedule's, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with a saved state."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")


def observe_step(method: Method, view: StepView) -> dict[str, float]:
    """Shows a method and its schedule what a step trains; returns the metrics of both."""
    return method.observe_step(view) | method.schedule.observe_step(view)


def fitting_prompts(method: Method, problem: Problem) -> Mapping[str, tuple[Message, ...]]:
    """A problem's opening prompts by role; empty where one of them exceeds its role's limit."""
    chats = method.opening_prompts(method.config, method.prompts, problem)
    return chats if all(method.tools.fits(*each) for each in chats.items()) else {}


def answering_roles(method: type[Method]) -> tuple[str, ...]:
    """The roles whose responses answer the problem."""
    return tuple(name for name, role in method.roles.items() if role.answers)


def trained_stages(method: Method, step: int) -> frozenset[str]:
    """The stages of which the update of a step trains something."""
    trained = method.schedule.trained(step)
    if trained.policies is not None and not trained.policies:
        return frozenset()
    return frozenset(
        stage.name
        for stage in method.stages(method.config)
        if stage.trained and (trained.roles is None or not trained.roles.isdisjoint(stage.roles))
    )


def is_trained(method: Method, groups: Sequence[Group], step: int) -> bool:
    """True if a complete unit has anything that an update of this step trains."""
    stages = trained_stages(method, step)
    found = [group for group in groups if group.request.stage in stages]
    return bool(found) and method.credit.is_trainable(found)


def trained_rows(method: Method, groups: Sequence[Group], step: int) -> list[RowRef]:
    """The sequences that enter the loss of a step, in the order of the groups."""
    trained, stages = method.schedule.trained(step), trained_stages(method, step)

    def enters(ref: RowRef) -> bool:
        group = groups[ref.group]
        one = group.trajectories[ref.trajectory].sequences[ref.sequence]
        return (
            group.request.stage in stages
            and (trained.roles is None or one.role in trained.roles)
            and (trained.policies is None or one.policy in trained.policies)
        )

    return [ref for ref in method.credit.keep(groups) if enters(ref)]
