"""The single-turn method's settings, `marsrl.algo` with `name: rema_single_turn`, and the rules between
them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Protocol

from pydantic import Field

from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING, ROLES
from marsrl_verl.algos.rema.single_turn.judge import JudgePrompts
from marsrl_verl.algos.rema.single_turn.rewards import (
    NEED_LOOK,
    LeakRule,
    PenaltyMode,
    PlanRewardKind,
    SolutionValues,
    tells_answers,
)
from marsrl_verl.core.credit import Estimator, EstimatorConfig
from marsrl_verl.settings.choices import Choice, OffPolicyMode
from marsrl_verl.settings.declaration import Needs, Switched, limits
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import no_such_choice
from marsrl_verl.settings.rules import Rule
from marsrl_verl.settings.run_view import RunView

PLAN, SOLUTION = "plan", "solution"
"""The stages."""
_ALGO = "marsrl.algo"


class Process(Choice):
    """Process by which an answer is made (`Config.process`; arXiv 2503.09501, §3.1)."""

    MAMRP = "mamrp"
    MRP = "mrp"
    VRP = "vrp"


class PlanForm(Choice):
    """Form of a plan (`Config.plan_form`)."""

    TEXT = "text"
    JSON = "json"


class FilterRule(Choice):
    """Rule for the problems that a phase trains, by the counted successes (`FilterConfig.rule`)."""

    BOUNDS = "bounds"


class Keeps(Protocol):
    """Decides whether a problem is kept, by its successes in so many samples, one at least."""

    def __call__(self, successes: int, samples: int) -> bool:
        """See the class."""


_PLANS = Needs("process", Process.MAMRP)
_RATE, _BOUNDS = "it is a success rate", Needs("rule", FilterRule.BOUNDS)


class FilterConfig(Switched):
    """Prompt filtering: each phase begins with an epoch that counts successes and trains nothing."""

    enabled: bool = True
    """If true, a phase's training epochs have only the problems that its agent solves now and then; else
    all."""
    samples: int = limits(10, ge=1, why="a rate needs a sample")
    """Solutions (for the meta-thinking agent plans) of each problem that are counted."""
    rule: Rule[FilterRule, Keeps] = FilterRule.BOUNDS
    """Problems that are kept: those within `bounds`, or by a function of yours, (successes, samples) -> bool
    (docs/guides/new_method.md)."""
    lowest: float = limits(0.2, ge=0.0, le=1.0, why=_RATE, needs=_BOUNDS)
    """Least success rate of a problem that is kept, itself included."""
    highest: float = limits(0.8, ge=0.0, le=1.0, why=_RATE, needs=_BOUNDS)
    """Largest success rate of a problem that is kept, itself included."""


class Config(EstimatorConfig):
    """Plan and solution in one turn each, trained in turns (ReMA, arXiv 2503.09501, §3.2.1, alg. 1)."""

    preset_values: ClassVar[Mapping[str, float]] = {"algorithm.kl_ctrl.kl_coef": 0.01}
    resumable: ClassVar[frozenset[str]] = frozenset({"solution_values"})

    name: str = "rema_single_turn"
    """The method."""
    group_size: int = limits(4, ge=2, why="advantages compare the responses of a group")
    """Responses of the agent that is trained to one prompt: solutions of a plan, or plans of a problem."""
    estimator: Estimator = Estimator.REINFORCE_PP
    """`reinforce_pp`, the paper's: returns of every token, whitened over the step; all responses are trained.
    `group`: advantages relative to the group; groups with equal rewards are not trained. With
    `algorithm.use_kl_in_reward` a response's reward loses its KL token by token with the former, as a whole
    with the latter."""
    process: Process = Process.MAMRP
    """`mamrp`: plan, then solution, by two agents; `mrp` and `vrp`: baselines of one agent (`reasoning`),
    with and without a plan of its own."""
    plan_form: PlanForm = limits(PlanForm.TEXT, needs=_PLANS)
    """`text`, or `json`: DECOMPOSE, REWRITE or EMPTY with a text, held to its grammar by the engine."""
    plans_per_problem: int = limits(4, ge=1, why="a solution needs a plan", needs=_PLANS)
    """Plans of a problem while the reasoning agent is trained; a step has fewer problems in return, so that
    it has as many prompts as one of the other phase."""
    solutions_per_plan: int = limits(1, ge=1, why="a plan is known by a solution", needs=_PLANS)
    """Solutions by which a plan is rewarded: 1 is decoded greedily, several are sampled."""
    train_roles: list[str] = Field(default_factory=lambda: [REASONING, META_THINKING])
    """Roles that are trained, in the order of the phases of an iteration."""
    iterations: int | None = limits(None, ge=1, why="null goes on until the limit of steps")
    """Phases of each agent (the paper's update iterations); training ends after the last one. null: no
    end."""
    episodes: int = limits(4, ge=1, why="a phase trains")
    """Training epochs in a phase."""
    filter: FilterConfig = Field(default_factory=FilterConfig)
    """Problems that a phase trains."""
    solution_values: SolutionValues = Field(default_factory=SolutionValues)
    """Rewards of solutions."""
    plan_reward: PlanRewardKind = limits(PlanRewardKind.CORRECTNESS, needs=_PLANS)
    """`correctness`: the share of a plan's solutions that are correct; `consistency`: the share with the most
    frequent answer, 0 where most of them have none."""
    leak_rule: LeakRule = limits(LeakRule.VALUE, needs=_PLANS)
    """Plans that are punished: those with any value that equals the answer and is not in the question
    (`value`), those that claim something equal to it (`equivalence`), those that have an answer's form, such
    as a box (`format`, the paper's), `either` of the latter two, or `none`. A JSON plan that is none is
    punished with any of them."""
    penalty: float = limits(-1.0, le=0.0, why="it punishes", needs=_PLANS)
    """Reward of these plans, or the amount that is added to it (`penalty_mode`)."""
    penalty_mode: PenaltyMode = limits(PenaltyMode.REPLACE, needs=_PLANS)
    """`replace`: the penalty is the reward; `add`: it is added to it."""

    @property
    def phase_roles(self) -> tuple[str, ...]:
        """Roles that are trained, in the order of the phases."""
        return tuple(self.train_roles) if self.process is Process.MAMRP else (REASONING,)

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks these settings and those of the run against each other."""
        return [*_own(run), *super().checks(run)]

    def plan_lines(self, run: RunView) -> list[str]:
        """Describes the course of the phases."""
        one = "an epoch that counts successes, then " if self.filter.enabled else ""
        phases = ", then ".join(self.phase_roles)
        times = "until the limit of steps" if self.iterations is None else f"{self.iterations} time(s)"
        lines = [
            f"phases: {phases}; each {one}{self.episodes} training epoch(es); {times}",
            f"trained: one agent at a time, at most {self.group_size} responses for each new problem",
        ]
        policies = {run.settings.policy_of(role) for role in (REASONING, META_THINKING)}
        if len(self.phase_roles) > 1 and len(policies) == 1:
            lines.append(
                "! both agents have the same weights: each phase changes the other agent too; the paper has "
                "policies=model_per_role"
            )
        return lines


class Evaluation(EvaluationConfig):
    """Evaluation of plan and solution together on the held-out problems."""

    both_orders: bool = False
    """If true, every pair of answers is judged in both orders, and counts as solved if more of the two
    verdicts are right than wrong (JudgeBench); for data of pairs alone."""
    solutions_per_plan: int = limits(1, ge=1, why="a plan is known by a solution")
    """Solutions of each sampled plan: k2 of k1 x k2, where k1 is `samples_per_problem`. The greedy pass has
    one."""


def grammar_roles(config: Config) -> frozenset[str]:
    """Returns the meta-thinking agent if its plans are JSON and trained."""
    held = config.process == Process.MAMRP and config.plan_form == PlanForm.JSON
    return frozenset({META_THINKING} if held and META_THINKING in config.train_roles else ())


def _own(run: RunView) -> Iterator[ConfigIssue]:
    config: Config = run.settings.algo
    if config.filter.lowest > config.filter.highest:
        what = (
            f"No success rate is at least this and at most {_ALGO}.filter.highest = {config.filter.highest}."
        )
        fix = "Set it to at most that."
        yield ConfigIssue(f"{_ALGO}.filter.lowest", what, fix, config.filter.lowest)
    values = config.solution_values
    if not values.correct > max(values.wrong, values.no_answer):
        what = "A correct solution has to earn more than a wrong one."
        yield ConfigIssue(f"{_ALGO}.solution_values.correct", what, "Raise it.", values.correct)
    if config.process is Process.MAMRP:
        yield from _two_agents(run, config)
    else:
        yield from _one_agent(run, config)
    yield from _frozen(run, config)
    evaluation: Evaluation = run.settings.evaluation
    if evaluation.both_orders and not isinstance(run.prompts(), JudgePrompts):
        what = "It is for pairs of answers, and these prompts ask for no verdict."
        fix = "Choose algo=rema_judge (vrp_judge, mrp_judge), or leave it out."
        yield ConfigIssue("marsrl.evaluation.both_orders", what, fix, True)
    if evaluation.solutions_per_plan > 1:
        yield from _solutions_of_plans(config, evaluation)


def _solutions_of_plans(config: Config, evaluation: Evaluation) -> Iterator[ConfigIssue]:
    key, found = "marsrl.evaluation.solutions_per_plan", evaluation.solutions_per_plan
    if config.process is not Process.MAMRP:
        what, fix = f"With {_ALGO}.process = {config.process} there are no plans.", "Leave it out."
        yield ConfigIssue(key, what, f"{fix} More answers are marsrl.evaluation.samples_per_problem.", found)
    if evaluation.both_orders:
        what = "A plan has two judgements with marsrl.evaluation.both_orders, one for each order."
        yield ConfigIssue(key, what, "Leave one of the two out.", found)
    if not evaluation.samples_per_problem:
        what = "With marsrl.evaluation.samples_per_problem = 0 nothing is sampled."
        yield ConfigIssue(key, what, "Raise that, or leave this out.", found)


def _left_out(config: Config, what: str, *names: str) -> Iterator[ConfigIssue]:
    """Finds changed settings that have no effect."""
    for name in config.changed(*names):
        yield ConfigIssue(f"{_ALGO}.{name}", what, "Leave it out.", getattr(config, name))


def _two_agents(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    roles, key = config.train_roles, f"{_ALGO}.train_roles"
    for role in roles:
        if role not in ROLES:
            yield no_such_choice(key, role, ROLES)
    if not roles:
        yield ConfigIssue(key, "No role is trained.", f"Name at least one of: {', '.join(ROLES)}.", "[]")
    elif len(set(roles)) < len(roles):
        yield ConfigIssue(key, "A role is named twice.", "Name each role once.", ", ".join(roles))
    if META_THINKING not in roles:
        what = f"It rewards plans, and {key} has no {META_THINKING}."
        names = ("solutions_per_plan", "plan_reward", "leak_rule", "penalty", "penalty_mode")
        yield from _left_out(config, what, *names)
    elif config.plan_reward is PlanRewardKind.CONSISTENCY and config.solutions_per_plan < 2:
        what = "Consistency compares the answers of several solutions of a plan."
        fix = "Set it to 8, or to 4 at least."
        yield ConfigIssue(f"{_ALGO}.solutions_per_plan", what, fix, config.solutions_per_plan)
    reward = run.settings.reward[REASONING]
    if config.plan_reward is PlanRewardKind.CONSISTENCY and not tells_answers(reward):
        what = "Its results don't say what was answered, and consistency counts answers."
        fix = (
            "Give the answer as info['answer'] of each result, and set `tells_answer = True` in the class; "
            f"or set {_ALGO}.plan_reward=correctness."
        )
        yield ConfigIssue(f"marsrl.reward.{REASONING}.target", what, fix, reward.target)
    problems = run.get("data.train_batch_size")
    if REASONING in roles and isinstance(problems, int) and problems < config.plans_per_problem:
        what = (
            f"A step of {problems} prompts (data.train_batch_size) has no room for the plans of one problem."
        )
        fix = "Lower it, or raise data.train_batch_size."
        yield ConfigIssue(f"{_ALGO}.plans_per_problem", what, fix, config.plans_per_problem)
    if REASONING not in roles:
        what = f"It counts the prompts of the reasoning agent's phases, and {key} has no {REASONING}."
        yield from _left_out(config, what, "plans_per_problem")
    if config.leak_rule is LeakRule.NONE and config.plan_form is PlanForm.TEXT:
        what = f"With {_ALGO}.leak_rule = none no plan is punished."
        yield from _left_out(config, what, "penalty", "penalty_mode")
    kwargs = run.settings.reward[META_THINKING].kwargs
    if META_THINKING in roles and config.leak_rule in NEED_LOOK and kwargs.get("look") is False:
        what = (
            f"With marsrl.reward.{META_THINKING}.kwargs.look = false nobody looks for what plans give away."
        )
        fix = "Set it to format or none, or leave the key out."
        yield ConfigIssue(f"{_ALGO}.leak_rule", what, fix, config.leak_rule)
    if config.plan_form is PlanForm.JSON and META_THINKING in run.frozen_roles:
        what = "The grammar of actions needs an engine of the run, and the policy of meta_thinking is frozen."
        yield ConfigIssue(f"{_ALGO}.plan_form", what, "Set it to text.", config.plan_form)
    mode = run.settings.off_policy.mode
    if grammar_roles(config) and mode is not OffPolicyMode.POIS:
        what = (
            "The engine's log-probabilities of a plan are those among what its grammar allows, the trainer's "
            "those among all tokens, so the ratios that it is made of would be wrong."
        )
        fix = f"Set it to pois, or {_ALGO}.plan_form=text."
        yield ConfigIssue("marsrl.off_policy.mode", what, fix, mode)
    if config.plan_form is PlanForm.JSON and run.settings.pipeline.max_segments > 1:
        what = "A grammar begins anew with every request, so plans can't be cut into segments."
        fix = f"Set it to 1, or {_ALGO}.plan_form=text."
        yield ConfigIssue("marsrl.pipeline.max_segments", what, fix, run.settings.pipeline.max_segments)


def _one_agent(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    settings = run.settings
    if settings.policy_of(META_THINKING) != settings.policy_of(REASONING):
        own, default = settings.roles[META_THINKING].policy, settings.default_policy
        key = "marsrl.default_policy" if own is None else f"marsrl.roles.{META_THINKING}.policy"
        what = (
            f"With {_ALGO}.process = {config.process} nobody prompts {META_THINKING}, whose weights would be "
            "loaded, served and saved for nothing."
        )
        fix = "Choose policies=shared, or policies=lora for an adapter." if own is None else "Leave it out."
        yield ConfigIssue(key, what, fix, default if own is None else own)
    if config.changed("train_roles"):
        what = f"With {_ALGO}.process = {config.process} there is the agent {REASONING} alone."
        yield ConfigIssue(f"{_ALGO}.train_roles", what, "Leave it out.", ", ".join(config.train_roles))


def _frozen(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    frozen = [role for role in config.phase_roles if role in run.frozen_roles]
    rest = [role for role in config.phase_roles if role not in frozen]
    if frozen and run.trains:
        what = f"The policy of {' and '.join(frozen)} (marsrl.policies) is frozen."
        fix = f"Set {_ALGO}.train_roles=[{','.join(rest)}]." if rest else "Leave the policy of a role out."
        yield ConfigIssue(f"{_ALGO}.train_roles", what, fix, ", ".join(config.phase_roles))
