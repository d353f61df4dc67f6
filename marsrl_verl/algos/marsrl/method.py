"""MarsRL: Solver, Verifier and Corrector trained together on shared weights (arXiv 2511.11373, §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.marsrl import config as settings_of
from marsrl_verl.algos.marsrl.config import SelectScope
from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.role_metrics import log_fields, role_figures
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, MathPrompts, RolePrompts
from marsrl_verl.algos.marsrl.role_balance import VerdictBalance, balance_roles, balance_verdicts
from marsrl_verl.algos.marsrl.selection import Candidate, choose
from marsrl_verl.algos.marsrl.verdict import Verdict, right_verdict
from marsrl_verl.core.credit import EstimatorCredit
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape, Shown, no_text
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import Trajectory, is_correct


class MarsCredit(EstimatorCredit):
    """Advantages of a role's responses relative to their group, weighted by role and by judged solution."""

    config: settings_of.Config

    def is_trainable(self, groups: Sequence[Group]) -> bool:
        """True for groups that the estimator can compare, and for complete groups of judgements that the
        balance of verdicts counts, whatever their rewards."""
        return super().is_trainable(groups) or any(map(self._balances, groups))

    def _balances(self, group: Group) -> bool:
        complete = len(group.trajectories) == group.request.n
        counted = group.request.role == VERIFIER and complete and bool(group.comparable)
        return counted and self.config.verdict_balance is not VerdictBalance.INPUTS

    def factors(self, rows: Rows) -> NDArray[np.float64]:
        """Returns (B,) the factors of the rows' roles, times those of the judged solutions."""
        found = balance_roles(rows, self.config.role_balance, self.config.role_weights)
        return found * balance_verdicts(rows, self.config.verdict_balance)


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """Contents of a request before it is chosen and has a place."""

    source: Candidate
    """The output of the preceding stage that it is about."""
    messages: tuple[Message, ...]
    inputs: Mapping[str, Any]
    """`solution`, the text under judgement or repair, and `solution_reward`, the reward of its answer: 1
    right, 0 wrong. The Verifier is scored against it, and fix and break rates are measured with it."""


class MarsRL(Method):
    """The chain Solver, then (Verifier, Corrector) x rounds; stages after the last trained role are left
    out, since nothing would be learnt from them.

    - Verifier inputs are finished solutions with a final text; Corrector inputs are finished Verifier
      answers with verdict Wrong, together with the solution they judged. An input whose prompt is
      too long is not eligible. Without an eligible output the problem ends.
    - K inputs per problem and stage, chosen by `selection`. For a Verifier, incorrect solutions are the
      preferred class; for a Corrector, verdicts that are right (reward 1) (§3.4). With `distinct_answers` a
      Verifier is shown one solution of each final answer at most.
    - A group whose rewards are all equal is not trained relative to itself, but still feeds the next stage.
    """

    Config = settings_of.Config
    Evaluation = settings_of.Evaluation
    Prompts = MathPrompts
    Credit = MarsCredit
    roles: ClassVar[Mapping[str, Role]] = {
        SOLVER: Role(answers=True, may_be_frozen=True),
        VERIFIER: Role(
            reward="marsrl_verl.algos.marsrl.verdict:VerdictReward",
            may_be_frozen=True,
            source_reward="solution_reward",
        ),
        CORRECTOR: Role(answers=True, may_be_frozen=True),
    }

    config: settings_of.Config
    prompts: RolePrompts

    @classmethod
    def stages(cls, config: settings_of.Config) -> tuple[Stage, ...]:
        """Returns the chain, with K inputs of each stage after the first."""
        return settings_of.chain(config)

    @classmethod
    def active_roles(
        cls, config: settings_of.Config, evaluation: settings_of.Evaluation | None
    ) -> tuple[str, ...]:
        """Returns all roles, or the Solver alone if neither training nor evaluation has rounds."""
        trained = config.correction_rounds
        rounds = trained > 0 or (evaluation is not None and evaluation.rounds(trained) > 0)
        return ROLES if rounds else (SOLVER,)

    @classmethod
    def prompt_shapes(
        cls,
        config: settings_of.Config,
        prompts: RolePrompts,
        problem: Problem = NO_PROBLEM,
        shown: Shown = no_text,
    ) -> tuple[PromptShape, ...]:
        """The Verifier is shown a solution, the Corrector a report too."""
        solution = {"solution": (SOLVER, CORRECTOR)}
        both = {**solution, "report": (VERIFIER,)}
        return (
            PromptShape(SOLVER, prompts.solver(problem)),
            PromptShape(VERIFIER, prompts.verifier(problem, shown("solution")), solution),
            PromptShape(CORRECTOR, prompts.corrector(problem, shown("solution"), shown("report")), both),
        )

    # --- evaluation ----------------------------------------------------------------------------

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: settings_of.Evaluation, prompts: RolePrompts
    ) -> VerifyCorrect | None:
        """Returns the verify–correct system; None for the Solver alone."""
        rounds = evaluation.rounds(config.correction_rounds)
        return VerifyCorrect(prompts, evaluation.rules(rounds)) if rounds > 0 else None

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """Returns the role's accuracies and rates."""
        return role_figures(groups)

    @classmethod
    def outcome(cls, request: RolloutRequest, trajectory: Trajectory) -> tuple[str, str] | None:
        """Returns the Verifier's verdict, and the right one."""
        if request.role != VERIFIER:
            return None
        right = right_verdict(request.inputs["solution_reward"])
        return str(trajectory.scored.info.get("verdict", Verdict.INVALID.value)), right.value

    @classmethod
    def trial(cls, role: str, index: int, number: int) -> tuple[str, Mapping[str, Any]]:
        """Lets the Verifier find errors, so that there is something to correct."""
        if role != VERIFIER:
            return super().trial(role, index, number)
        report = {"verdict": Verdict.WRONG.value, "report": "an error"}
        return "an error\n\n**Correctness**: Wrong", report

    # --- requests ------------------------------------------------------------------------------

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest]:
        """Returns up to K requests (per problem or per group) for chosen ones of the stage's eligible
        outputs."""
        stages = {one.name: one for one in self.stages(self.config)}
        following = stages[stages[stage].next[0]]
        per_group = self.config.select_scope is SelectScope.GROUP
        chosen: list[RequestDraft] = []
        for pool in [[group] for group in groups] if per_group else [groups]:
            drafts = [
                self._draft(problem, following.role, group, one)
                for group in pool
                for one in _without_repeats(group.trajectories)
            ]
            names = [problem.problem_id, following.name, *([pool[0].group_id] if per_group else [])]
            chosen += self._choose_fitting(following.role, [one for one in drafts if one], names)
        return [
            following.request(
                problem, one.messages, step, slot, inputs=one.inputs, parent_id=one.source.sample_id
            )
            for slot, one in enumerate(chosen)
        ]

    def _choose_fitting(self, role: str, drafts: list[RequestDraft], names: list[str]) -> list[RequestDraft]:
        """Chooses K drafts whose prompts are within the limit. Only chosen ones are measured, since counting
        all candidates' tokens would take the trainer longer than its update at 64k tokens a response; the
        choice is repeated, from the same random numbers, without those found too long."""
        config, left = self.config, {one.source.sample_id: one for one in drafts}
        while True:
            rng = derive_generator(self.tools.seed, *names)
            picks = choose(
                [one.source for one in left.values()],
                config.requests_per_stage,
                config.selection,
                rng,
                distinct_answers=config.distinct_answers and role == VERIFIER,
            )
            found = [left[pick.sample_id] for pick in picks]
            too_long = [one for one in found if not self.tools.fits(role, one.messages)]
            if not too_long:
                return found
            for one in too_long:
                del left[one.source.sample_id]

    def _draft(self, problem: Problem, role: str, group: Group, one: Trajectory) -> RequestDraft | None:
        """Drafts the request to `role` about a trajectory of the preceding stage; None if not eligible (its
        prompt's length apart)."""
        if not one.finished or not one.final_text:
            return None
        if not one.scored.graded:
            return None  # without the truth about a response nobody can be scored for judging it
        if role == VERIFIER:
            messages = self.prompts.verifier(problem, one.final_text)
            judged = {"solution": one.final_text, "solution_reward": one.value}
            return RequestDraft(_candidate(role, one), messages, judged)
        solution = group.request.inputs.get("solution")
        if one.scored.info.get("verdict") != Verdict.WRONG.value or solution is None:
            return None
        report = one.scored.info.get("report")
        messages = self.prompts.corrector(problem, solution, one.final_text if report is None else report)
        return RequestDraft(_candidate(role, one), messages, group.request.inputs)

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        return log_fields(request, trajectory)


def _without_repeats(trajectories: list[Trajectory]) -> list[Trajectory]:
    """Returns the trajectories without a frozen Solver's repeated answers, of which a file with few answers
    has many: as inputs they would be one group twice."""
    seen: set[str] = set()
    unique = []
    for one in trajectories:
        if not (one.external and one.text in seen):
            seen.add(one.text)
            unique.append(one)
    return unique


def _candidate(role: str, one: Trajectory) -> Candidate:
    """Returns a candidate for the requests of `role`; preferred (§3.4) are incorrect solutions for the
    Verifier, rightly found errors for the Corrector."""
    preferred = not is_correct(one.value) if role == VERIFIER else is_correct(one.value)
    answer = one.scored.info.get("answer")
    return Candidate(one.trajectory_id, preferred, answer, one.value, one.final_text)
