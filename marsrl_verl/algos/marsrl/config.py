"""MarsRL's settings: `marsrl.algo` with `name: marsrl`, and its part of `marsrl.evaluation`; and the rules
between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from pydantic import Field

from marsrl_verl.algos.marsrl.evaluation.loop_rules import Fallback, LoopRules
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.role_balance import RoleBalance, VerdictBalance
from marsrl_verl.algos.marsrl.selection import Selects, Strategy
from marsrl_verl.core.credit import EstimatorConfig
from marsrl_verl.core.stage import Stage
from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.declaration import limits
from marsrl_verl.settings.evaluation import EvaluationConfig, InBetweenConfig
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import no_such_choice
from marsrl_verl.settings.rules import OwnFunction, Rule
from marsrl_verl.settings.run_view import RunView


class SelectScope(Choice):
    """Scope in which the K inputs of the next stage are counted (`Config.select_scope`)."""

    PROBLEM = "problem"
    GROUP = "group"


class Config(EstimatorConfig):
    """Sampling and credit (MarsRL, arXiv 2511.11373, §3)."""

    resumable: ClassVar[frozenset[str]] = frozenset(
        {"selection", "distinct_answers", "role_balance", "role_weights"}
    )

    name: str = "marsrl"
    """The method."""
    requests_per_stage: int = limits(2, ge=1, why="a stage needs an input")
    """Outputs of one stage that become inputs of the next (K)."""
    correction_rounds: int = limits(2, ge=0, why="0 is the Solver alone")
    """Verifier–Corrector rounds after the Solver; 2 gives the paper's five stages, 0 the Solver alone."""
    selection: Rule[Strategy, Selects] = Strategy.ADAPTIVE
    """Rule that chooses the inputs of the next stage (§3.4): `random` (uniformly over all eligible outputs of
    the stage), `balanced` (half from each reward class; the odd one of an odd K from either with equal
    chance), `adaptive` (incorrect solutions and rightly found errors first), or a function of yours,
    (candidates, k, rng) -> chosen (docs/guides/new_method.md). It makes no difference which input an output
    answers."""
    select_scope: SelectScope = SelectScope.PROBLEM
    """`problem`: K inputs per problem and stage, pooled over its groups; `group`: K per group."""
    distinct_answers: bool = False
    """If true, only one of the solutions with the same final answer (as the reward class reports it), drawn
    at random, is a candidate for the Verifier's inputs; those without a readable answer count as one answer.
    Fewer answers than K give fewer inputs. Off in the paper (§3.4)."""
    train_roles: list[str] = Field(default_factory=lambda: list(ROLES))
    """Roles whose samples enter the loss."""
    role_balance: RoleBalance = RoleBalance.TOKENS
    """`tokens`: one mean over all trained tokens (paper); `roles`: the mean of the roles' token means,
    so that the role with the longest responses does not dominate."""
    role_weights: dict[str, float] = Field(default_factory=dict)
    """Loss weight by role, 1 where absent."""
    verdict_balance: VerdictBalance = VerdictBalance.INPUTS
    """`inputs`: every judged solution counts alike in the Verifier's part of the loss (paper); `classes`: by
    the number of judgements of right and of wrong ones, so that calling everything wrong gains nothing;
    `errors`: as `classes`, and the class that is misjudged more often counts more, which leads away from any
    constant verdict. With the last two a step that judged one class alone does not train the Verifier, and
    its groups with equal rewards, which are counted and not trained, are among those of
    `marsrl.pipeline.min_groups`."""

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Checks these settings, and those of the evaluation, against each other."""
        return [
            *_selection(self),
            *train_role_issues(self),
            *_weights(self),
            *_verdicts(self),
            *_frozen(run, self),
            *super().checks(run),
            *_evaluation(run),
        ]

    def plan_lines(self, run: RunView) -> list[str]:
        """Describes the outputs that become inputs; nothing if no stage follows."""
        if len(chain(self)) == 1:
            return []
        k, half = self.requests_per_stage, "half of each class"
        if k == 1:
            half = "of either class with equal chance"
        elif k % 2:
            half += ", the odd one of either with equal chance"
        rules = {
            Strategy.RANDOM: "drawn from all",
            Strategy.BALANCED: half,
            Strategy.ADAPTIVE: "incorrect solutions and rightly found errors first",
        }
        rule = self.selection
        chosen = f"chosen by {rule}" if isinstance(rule, OwnFunction) else rules[rule]
        lines = [f"  inputs of a stage after the first: {k} a {self.select_scope}, {chosen}"]
        least, counted = run.settings.pipeline.min_groups, self.verdict_balance is not VerdictBalance.INPUTS
        if counted and least > 1 and VERIFIER in self.train_roles:
            lines.append(
                f"  ! marsrl.pipeline.min_groups = {least} counts Verifier groups with equal rewards, which "
                f"train nothing, too ({_ALGO}.verdict_balance = {self.verdict_balance})"
            )
        return lines


class InBetween(InBetweenConfig):
    """Evaluations in between (`marsrl.evaluation.every`): like the others but for these settings."""

    solver_only: bool = False
    """If true, the Solver alone is evaluated: one generation round, where the whole system takes two or three
    for each verify–correct round."""


class Evaluation(EvaluationConfig):
    """Evaluation of the roles and of the whole system on the held-out problems."""

    in_between: InBetween = Field(default_factory=InBetween)
    """Differences of the evaluations in between."""
    correction_rounds: int | None = limits(None, ge=0, why="0 is none")
    """Most verify–correct rounds of the evaluated system; 0 for the Solver alone. A round is one judgement
    and, after Wrong, a correction. null: 2 where such rounds are trained, else 0."""
    accept_passes: int = limits(1, ge=1, why="a solution is accepted by a verdict")
    """Correct verdicts in a row on one solution that accept it and end the run; each takes a round. The
    greedy pass accepts at the first one."""
    reject_fails: int | None = limits(None, ge=1, why="null is no number of them")
    """Wrong verdicts in a row, on whatever solutions, after which a run is given up; null: no number of
    them."""
    fallback: Fallback = Fallback.LAST
    """The answer of a run in which nothing was accepted: the `last` solution; the one with the most Correct
    verdicts (`passes`; without any the Solver's); the same, without any the most frequent answer
    (`majority`); or by the published evaluation script's rule, on accepted runs too (`released`)."""

    def between(self) -> EvaluationConfig:
        """Returns the settings of evaluations in between, with the Solver alone if they say so."""
        one = super().between()
        if not self.in_between.solver_only:
            return one
        defaults = {name: type(self).model_fields[name].default for name in _LOOP}
        return one.model_copy(update={"correction_rounds": 0, **defaults})

    def rounds(self, trained: int) -> int:
        """Returns the verify–correct rounds of a run; `trained`: those of training."""
        default = 2 if trained > 0 else 0
        return default if self.correction_rounds is None else self.correction_rounds

    def rules(self, rounds: int) -> LoopRules:
        """Returns the rules of the loop."""
        return LoopRules(rounds, self.accept_passes, self.reject_fails, self.fallback)


def chain(config: Config) -> tuple[Stage, ...]:
    """Solver, then (Verifier, Corrector) x rounds, without stages after the last trained role.

    Groups per problem: 1 + K + K + …; with K inputs per group: 1 + K + K² + …
    """
    roles = [SOLVER] + [VERIFIER, CORRECTOR] * config.correction_rounds
    while len(roles) > 1 and roles[-1] not in config.train_roles:
        roles.pop()
    names = [SOLVER, *(f"{role}_{at // 2 + 1}" for at, role in enumerate(roles[1:]))]
    stages: list[Stage] = []
    groups = 1
    for at, role in enumerate(roles):
        if at > 0:
            groups = config.requests_per_stage * (groups if config.select_scope is SelectScope.GROUP else 1)
        trained, following = role in config.train_roles, tuple(names[at + 1 : at + 2])
        stages.append(Stage(names[at], role, config.group_size, groups, trained=trained, next=following))
    return tuple(stages)


_ALGO = "marsrl.algo"
_LOOP = ("accept_passes", "reject_fails", "fallback")
_EVALUATION = "marsrl.evaluation"
_ROUNDS = f"{_EVALUATION}.correction_rounds"


def _unused(config: Config, what: str, instead: str, *names: str) -> Iterator[ConfigIssue]:
    """Finds changed settings that have no effect."""
    for name in config.changed(*names):
        fix = f"Leave it at {Config.model_fields[name].default}, or {instead}."
        yield ConfigIssue(f"{_ALGO}.{name}", what, fix, getattr(config, name))


def _selection(config: Config) -> Iterator[ConfigIssue]:
    """Checks the inputs per stage against the outputs of a stage."""
    rounds = f"{_ALGO}.correction_rounds"
    if config.correction_rounds == 0:
        what = f"With {rounds} = 0 the Solver is the only stage, so no inputs of a next one are chosen."
        names = ("selection", "select_scope", "requests_per_stage", "distinct_answers")
        yield from _unused(config, what, f"raise {rounds}", *names)
        return
    if config.requests_per_stage > config.group_size:
        what = (
            f"The Solver's one group per problem has {config.group_size} responses, so no more of them can "
            "be chosen as inputs of the next stage."
        )
        fix = f"Set it to at most {_ALGO}.group_size = {config.group_size}."
        yield ConfigIssue(f"{_ALGO}.requests_per_stage", what, fix, config.requests_per_stage)
    if config.distinct_answers and set(config.train_roles) == {SOLVER}:
        what = "It concerns the Verifier's inputs, and none are chosen where the Solver alone is trained."
        fix = f"Leave it out, or add a role to {_ALGO}.train_roles."
        yield ConfigIssue(f"{_ALGO}.distinct_answers", what, fix, config.distinct_answers)


def train_role_issues(config: Config) -> Iterator[ConfigIssue]:
    """Finds roles that can't be trained."""
    key, roles = f"{_ALGO}.train_roles", config.train_roles
    if not roles:
        yield ConfigIssue(key, "No role is trained.", f"Name at least one of: {', '.join(ROLES)}.", "[]")
    yield from (no_such_choice(key, role, ROLES) for role in roles if role not in ROLES)
    if len(set(roles)) < len(roles):
        yield ConfigIssue(key, "A role is named twice.", "Name each role once.", ", ".join(roles))
    absent = [role for role in roles if role in ROLES[1:]]
    if absent and config.correction_rounds == 0:
        what = (
            f"With {_ALGO}.correction_rounds = 0 only the Solver is generated, so {' and '.join(absent)} "
            "can't be trained."
        )
        fix = f"Raise {_ALGO}.correction_rounds, or use algo=grpo."
        yield ConfigIssue(key, what, fix, ", ".join(roles))


def _weights(config: Config) -> Iterator[ConfigIssue]:
    for role, weight in config.role_weights.items():
        key = f"{_ALGO}.role_weights.{role}"
        if role not in ROLES:
            yield no_such_choice(key, role, ROLES)
        elif role not in config.train_roles:
            what = "The role is not trained, so its weight has no effect."
            fix = f"Add the role to {_ALGO}.train_roles, or remove the weight."
            yield ConfigIssue(key, what, fix, weight)
        elif weight <= 0.0:
            fix = f"To leave a role untrained remove it from {_ALGO}.train_roles."
            yield ConfigIssue(key, "Expected a weight above 0.", fix, weight)


def _verdicts(config: Config) -> Iterator[ConfigIssue]:
    if VERIFIER not in config.train_roles or config.correction_rounds == 0:
        what = "No Verifier is trained, so nothing is weighted by what it judges."
        yield from _unused(config, what, "train the Verifier", "verdict_balance")


def _frozen(run: RunView, config: Config) -> Iterator[ConfigIssue]:
    """Checks that no trained role has a frozen policy."""
    frozen = {role: name for role, name in run.frozen_roles.items() if role in config.train_roles}
    rest = [role for role in config.train_roles if role not in frozen]
    what = " ".join(
        f"The policy {name} of the {role} (marsrl.policies) is frozen." for role, name in frozen.items()
    )
    fix = f"Set {_ALGO}.train_roles=[{','.join(rest)}]."
    if set(frozen) == {SOLVER}:
        fix = f"Choose algo=marsrl_vc, or set {_ALGO}.train_roles=[verifier,corrector]."
    elif not rest:
        fix = "Leave the policy of a role out."
    if frozen and run.trains:
        yield ConfigIssue(f"{_ALGO}.train_roles", what, fix, ", ".join(config.train_roles))


def _evaluation(run: RunView) -> Iterator[ConfigIssue]:
    """Checks the loop's numbers against the number of rounds, and the loop against the method's roles and a
    frozen Solver."""
    one: Evaluation = run.settings.evaluation
    rounds = one.rounds(run.settings.algo.correction_rounds)
    if rounds and (absent := [role for role in ROLES if role not in run.settings.roles]):
        what = f"The method {run.settings.algo.name} has no {' and no '.join(absent)} for them."
        yield ConfigIssue(_ROUNDS, what, "Set evaluation=solver.", rounds)
        return
    yield from (_with_rounds(one, rounds) if rounds else _without_rounds(one))
    if SOLVER in run.frozen_roles and run.trains:
        yield from _frozen_solver(one, rounds)


def _with_rounds(one: Evaluation, rounds: int) -> Iterator[ConfigIssue]:
    # A round gives one verdict, so what takes more of them than there are rounds never happens.
    what = f"A round gives one verdict, so there are never so many in a row in {rounds} of them."
    fix = f"Set it to at most {_ROUNDS} = {rounds}, or raise that."
    for name in ("accept_passes", "reject_fails"):
        if (number := getattr(one, name) or 0) > rounds:
            yield ConfigIssue(f"{_EVALUATION}.{name}", what, fix, number)


def _without_rounds(one: Evaluation) -> Iterator[ConfigIssue]:
    """Checks for settings of the loop that have no effect on the Solver's solution alone."""
    what = f"With {_ROUNDS} = 0 nobody judges the Solver's solution, so it has no effect."
    fix = f"Set evaluation=solver, or leave it out, or raise {_ROUNDS}."
    for name in one.changed(*_LOOP):
        yield ConfigIssue(f"{_EVALUATION}.{name}", what, fix, getattr(one, name))


def _frozen_solver(one: Evaluation, rounds: int) -> Iterator[ConfigIssue]:
    """Checks that a trained role is evaluated."""
    what = "Only the Solver would be evaluated, whose policy is frozen: training does not change it."
    if one.every > 0 and one.in_between.solver_only:
        key = f"{_EVALUATION}.in_between.solver_only"
        yield ConfigIssue(key, what, f"Set it to false, or {_EVALUATION}.every=0.", True)
    elif rounds == 0 and (one.before or one.after or one.every > 0):
        fix = f"Set it to 1 or more, or switch the evaluation off ({_EVALUATION}.before, after, every)."
        yield ConfigIssue(_ROUNDS, what, fix, rounds)
