"""MarsRL: Solver, Verifier and Corrector trained together on shared weights (arXiv 2511.11373, §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.base import BaseMethod, PromptLimits
from marsrl_verl.algos.estimator import estimated_advantages, estimated_rows, has_contrast
from marsrl_verl.algos.marsrl import config as settings_of
from marsrl_verl.algos.marsrl.config import SelectScope
from marsrl_verl.algos.marsrl.evaluation import config as evaluation_config
from marsrl_verl.algos.marsrl.evaluation.frozen import frozen_solutions
from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.role_metrics import role_figures
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, RolePrompts
from marsrl_verl.algos.marsrl.role_balance import VerdictBalance, balance_roles, balance_verdicts
from marsrl_verl.algos.marsrl.selection import Candidate, choose
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.algos.mastered_tokens import MasteredTokens
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import MethodTools, RunView, Stage, StagePlan
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.settings.issues import ConfigError, ConfigIssue


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """What a request is made of before it is chosen and has a place."""

    messages: tuple[Message, ...]
    parent_id: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """`solution`, the text under judgement or repair, and `solution_reward`, the reward of its answer: 1
    right, 0 wrong. The Verifier is scored against it, and fix and break rates are measured with it."""


class MarsRL(BaseMethod):
    """The chain Solver, then (Verifier, Corrector) x rounds; stages after the last trained role are left
    out, since nothing would be learnt from them.

    - Verifier inputs are finished solutions with a final text; Corrector inputs are finished Verifier
      answers with verdict Wrong, together with the solution they judged. An input whose prompt is
      too long is not eligible. Without an eligible output the problem ends.
    - K inputs per problem and stage, chosen by `strategy`. For a Verifier, incorrect solutions are the
      preferred class; for a Corrector, verdicts that are right (reward 1) (§3.4). With `distinct_answers` a
      Verifier is shown one solution of each final answer at most.
    - A group whose rewards are all equal is not trained relative to itself, but still feeds the next stage.
    """

    Config = settings_of.Config
    Evaluation = evaluation_config.Evaluation
    Prompts = RolePrompts
    default_prompts = "marsrl_verl.algos.marsrl.prompts:MathPrompts"
    roles = ROLES
    answering_roles = (SOLVER, CORRECTOR)
    text_roles = frozenset(ROLES)
    kl_in_reward = True
    rewards: ClassVar[Mapping[str, str]] = {VERIFIER: "marsrl_verl.algos.marsrl.verdict:VerdictReward"}
    resumable = frozenset(
        {
            "selection",
            "distinct_answers",
            "estimator",
            "gamma",
            "normalize_std",
            "role_balance",
            "role_weights",
            "mastered_tokens",
        }
    )

    prompts: RolePrompts

    def __init__(
        self,
        prompts: RolePrompts,
        config: settings_of.Config | None = None,
        *,
        seed: int,
        limits: PromptLimits | None = None,
        **settings: Any,
    ) -> None:
        """Build the method.

        Args:
            prompts: the roles' wording.
            config: its settings; None: those of `settings`, the others at their defaults.
            seed: all choices derive from it and from ids.
            limits: longest prompts; None: prompts of every length are eligible.

        Raises:
            ValueError: a setting is out of range.
            ConfigError: no stage has a trained role.
        """
        self.config = settings_of.Config(**settings) if config is None else config
        if issues := settings_of.train_role_issues(self.config):
            raise ConfigError(issues)
        mastered = MasteredTokens.from_config(self.config.mastered_tokens)
        super().__init__(prompts, self.config.group_size, limits, mastered)
        self.seed = seed
        self.train_roles = frozenset(self.config.train_roles)
        self.stages = _stages(self.config)

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> MarsRL:
        """Build the method from the `marsrl` node."""
        limits = cls.prompt_limits(settings, tools)
        return cls(tools.prompts, settings.algo, seed=settings.run.seed, limits=limits)

    @classmethod
    def plan(cls, config: settings_of.Config) -> tuple[StagePlan, ...]:
        """The chain, and K inputs of each stage after the first."""
        return settings_of.stage_plans(config)

    @classmethod
    def active_roles(
        cls, config: settings_of.Config, evaluation: evaluation_config.Evaluation | None
    ) -> tuple[str, ...]:
        """The Solver alone where neither training nor evaluation has rounds."""
        trained = config.correction_rounds
        rounds = trained > 0 or (evaluation is not None and evaluation.rounds(trained) > 0)
        return ROLES if rounds else (SOLVER,)

    @classmethod
    def prompt_shapes(cls, config: settings_of.Config, prompts: RolePrompts) -> tuple[PromptShape, ...]:
        """The Verifier is shown a solution, the Corrector a report too."""
        solution = {"solution": (SOLVER, CORRECTOR)}
        both = {**solution, "report": (VERIFIER,)}
        return (
            PromptShape(SOLVER, prompts.solver(NO_PROBLEM)),
            PromptShape(VERIFIER, prompts.verifier(NO_PROBLEM, ""), solution),
            PromptShape(CORRECTOR, prompts.corrector(NO_PROBLEM, "", ""), both),
        )

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `config.checks` and `evaluation.config.checks`."""
        return [*settings_of.checks(run), *evaluation_config.checks(run, cls.roles)]

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """See `config.plan_lines`."""
        return settings_of.plan_lines(run)

    # --- evaluation ----------------------------------------------------------------------------

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: evaluation_config.Evaluation, prompts: RolePrompts
    ) -> VerifyCorrect | None:
        """The verify–correct system, or the Solver alone."""
        rounds = evaluation.rounds(config.correction_rounds)
        return VerifyCorrect(prompts, evaluation.rules(rounds)) if rounds > 0 else None

    @classmethod
    def check_held_out(cls, problem: Problem) -> None:
        """Its frozen solutions can be read."""
        frozen_solutions(problem)

    @classmethod
    def evaluation_calls(
        cls, config: settings_of.Config, evaluation: evaluation_config.Evaluation
    ) -> Mapping[str, int]:
        """Where no run ends early and every verdict has to be asked for twice."""
        rounds = evaluation.rounds(config.correction_rounds)
        return {SOLVER: 1, **({VERIFIER: 2 * rounds, CORRECTOR: rounds} if rounds else {})}

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """The role's accuracies and rates."""
        return role_figures(groups)

    @classmethod
    def outcome(cls, request: RolloutRequest, trajectory: Trajectory) -> tuple[str, str] | None:
        """The Verifier's verdict, and the right one."""
        if request.role != VERIFIER:
            return None
        right = Verdict.CORRECT if is_correct(request.inputs["solution_reward"]) else Verdict.WRONG
        return str(trajectory.scored.info.get("verdict", Verdict.INVALID.value)), right.value

    # --- requests ------------------------------------------------------------------------------

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest]:
        """Up to K requests (per problem or per group) chosen from the stage's eligible outputs."""
        following = self._following(stage)
        pools = [groups] if self.config.select_scope is SelectScope.PROBLEM else [[group] for group in groups]
        chosen: list[RequestDraft] = []
        for pool in pools:
            found: dict[str, RequestDraft] = {}
            candidates: list[Candidate] = []
            for group in pool:
                for trajectory in _without_repeats(group.trajectories):
                    one = self._draft(problem, following.role, group, trajectory)
                    if one is not None:
                        found[trajectory.trajectory_id] = one
                        candidates.append(_candidate(following.role, trajectory))
            names = [problem.problem_id, following.name]
            if self.config.select_scope is SelectScope.GROUP:
                names.append(pool[0].group_id)
            chosen += self._choose_fitting(following.role, candidates, found, names)
        return [self._request(problem, following, slot, step, one) for slot, one in enumerate(chosen)]

    def _following(self, stage: str) -> Stage:
        names = [one.name for one in self.stages]
        return self.stages[names.index(stage) + 1]

    def _choose_fitting(
        self, role: str, candidates: list[Candidate], drafts: dict[str, RequestDraft], names: list[str]
    ) -> list[RequestDraft]:
        """Choose K whose prompts are within the limit.

        Only chosen prompts are measured, since counting the tokens of every candidate would take the
        trainer longer than its update at 64k tokens a response; the choice is repeated, from the same
        random numbers, without those found too long.
        """
        while True:
            rng = derive_generator(self.seed, *names)
            distinct = self.config.distinct_answers and role == VERIFIER
            picks = choose(
                candidates,
                self.config.requests_per_stage,
                self.config.selection,
                rng,
                distinct_answers=distinct,
            )
            too_long = {
                pick.sample_id for pick in picks if not self.fits(role, drafts[pick.sample_id].messages)
            }
            if not too_long:
                return [drafts[pick.sample_id] for pick in picks]
            candidates = [candidate for candidate in candidates if candidate.sample_id not in too_long]

    def _draft(self, problem: Problem, role: str, group: Group, one: Trajectory) -> RequestDraft | None:
        """What `role` would be asked about a trajectory of the preceding stage; None if not eligible (its
        prompt's length apart)."""
        if not one.finished or not one.final_text:
            return None
        if not one.scored.graded:
            return None  # without the truth about a response nobody can be scored for judging it
        if role == VERIFIER:
            messages = self.prompts.verifier(problem, one.final_text)
            judged = {"solution": one.final_text, "solution_reward": one.value}
            return RequestDraft(messages, one.trajectory_id, judged)
        solution = group.request.inputs.get("solution")
        if one.scored.info.get("verdict") != Verdict.WRONG.value or solution is None:
            return None
        report = one.scored.info.get("report")
        messages = self.prompts.corrector(problem, solution, one.final_text if report is None else report)
        return RequestDraft(messages, one.trajectory_id, group.request.inputs)

    def _request(
        self, problem: Problem, stage: Stage, slot: int, step: int, one: RequestDraft
    ) -> RolloutRequest:
        return RolloutRequest(
            group_id=f"{problem.problem_id}/{stage.name}/{slot}",
            problem=problem,
            stage=stage.name,
            role=stage.role,
            messages=one.messages,
            n=self.group_size,
            inputs=one.inputs,
            parent_id=one.parent_id,
            created_step=step,
        )

    # --- training ------------------------------------------------------------------------------

    def trains(self, groups: Sequence[Group]) -> bool:
        """True for groups of a trained role that the estimator can compare, and for complete groups of
        judgements that the balance of verdicts counts, whatever their rewards."""
        trained = [group for group in groups if group.request.role in self.train_roles]
        return has_contrast(self.config, trained) or any(self._balances(group) for group in trained)

    def _balances(self, group: Group) -> bool:
        complete = len(group.trajectories) == group.request.n
        counted = group.request.role == VERIFIER and complete and bool(group.comparable)
        return counted and self.config.verdict_balance is not VerdictBalance.INPUTS

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """All that the estimator gives an advantage to."""
        return estimated_rows(self.config, groups)

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The estimator's, with the factors of roles and of judged solutions."""
        factors = balance_roles(rows, self.config.role_balance, self.config.role_weights)
        factors *= balance_verdicts(rows, self.config.verdict_balance)
        return estimated_advantages(self.config, rows, factors)

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """What was judged or repaired, and what was found in the trajectory."""
        info = trajectory.scored.info
        return {
            "answer": info.get("answer"),
            "verdict": info.get("verdict"),
            "solution_reward": request.inputs.get("solution_reward"),
        }


def _stages(config: settings_of.Config) -> tuple[Stage, ...]:
    plans = settings_of.stage_plans(config)
    following = [(plan.name,) for plan in plans[1:]] + [()]
    return tuple(Stage(plan.name, plan.role, names) for plan, names in zip(plans, following, strict=True))


def _without_repeats(trajectories: list[Trajectory]) -> list[Trajectory]:
    """Without a frozen Solver's further answers with the same text, of which a file with few answers has
    many: as inputs they would be one group twice."""
    seen: set[str] = set()
    unique = []
    for one in trajectories:
        if one.external and one.text in seen:
            continue
        seen.add(one.text)
        unique.append(one)
    return unique


def _candidate(role: str, one: Trajectory) -> Candidate:
    """For the requests of `role`; preferred (§3.4) are incorrect solutions for the Verifier, rightly found
    errors for the Corrector."""
    preferred = not is_correct(one.value) if role == VERIFIER else is_correct(one.value)
    return Candidate(one.trajectory_id, preferred, one.scored.info.get("answer"))
