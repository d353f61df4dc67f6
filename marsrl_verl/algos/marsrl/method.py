"""MarsRL: Solver, Verifier and Corrector trained together on shared weights (arXiv 2511.11373, §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marsrl_verl.algos.marsrl import config as settings_of
from marsrl_verl.algos.marsrl.config import SelectScope
from marsrl_verl.algos.marsrl.credit import MarsCredit
from marsrl_verl.algos.marsrl.evaluation import config as evaluation_config
from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.role_metrics import role_figures
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, MathPrompts, RolePrompts
from marsrl_verl.algos.marsrl.selection import Candidate, choose
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.settings.issues import ConfigError


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """What a request is made of before it is chosen and has a place."""

    messages: tuple[Message, ...]
    parent_id: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """`solution`, the text under judgement or repair, and `solution_reward`, the reward of its answer: 1
    right, 0 wrong. The Verifier is scored against it, and fix and break rates are measured with it."""


class MarsRL(Method):
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
    Prompts = MathPrompts
    Credit = MarsCredit
    roles: ClassVar[Mapping[str, Role]] = {
        SOLVER: Role(answers=True, may_be_frozen=True),
        VERIFIER: Role(reward="marsrl_verl.algos.marsrl.verdict:VerdictReward", may_be_frozen=True),
        CORRECTOR: Role(answers=True, may_be_frozen=True),
    }

    config: settings_of.Config
    prompts: RolePrompts

    def __init__(self, config: settings_of.Config, tools: MethodTools) -> None:
        if issues := settings_of.train_role_issues(config):
            raise ConfigError(issues)
        super().__init__(config, tools)

    @classmethod
    def stages(cls, config: settings_of.Config) -> tuple[Stage, ...]:
        """The chain, with K inputs of each stage after the first."""
        return settings_of.chain(config)

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

    # --- evaluation ----------------------------------------------------------------------------

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: evaluation_config.Evaluation, prompts: RolePrompts
    ) -> VerifyCorrect | None:
        """The verify–correct system, or the Solver alone."""
        rounds = evaluation.rounds(config.correction_rounds)
        return VerifyCorrect(prompts, evaluation.rules(rounds)) if rounds > 0 else None

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

    @classmethod
    def trial(cls, role: str, k: int, number: int) -> tuple[str, Mapping[str, Any]]:
        """The Verifier finds errors, so that there is something to correct."""
        if role != VERIFIER:
            return super().trial(role, k, number)
        report = {"verdict": Verdict.WRONG.value, "report": "an error"}
        return "an error\n\n**Correctness**: Wrong", report

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
        return [
            following.request(problem, one.messages, step, slot, inputs=one.inputs, parent_id=one.parent_id)
            for slot, one in enumerate(chosen)
        ]

    def _following(self, stage: str) -> Stage:
        stages = self.stages(self.config)
        return stages[[one.name for one in stages].index(stage) + 1]

    def _choose_fitting(
        self, role: str, candidates: list[Candidate], drafts: dict[str, RequestDraft], names: list[str]
    ) -> list[RequestDraft]:
        """Choose K whose prompts are within the limit.

        Only chosen prompts are measured, since counting the tokens of every candidate would take the
        trainer longer than its update at 64k tokens a response; the choice is repeated, from the same
        random numbers, without those found too long.
        """
        while True:
            rng = derive_generator(self.tools.seed, *names)
            distinct = self.config.distinct_answers and role == VERIFIER
            picks = choose(
                candidates,
                self.config.requests_per_stage,
                self.config.selection,
                rng,
                distinct_answers=distinct,
            )
            too_long = {
                pick.sample_id for pick in picks if not self.tools.fits(role, drafts[pick.sample_id].messages)
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

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """What was judged or repaired, and what was found in the trajectory."""
        info = trajectory.scored.info
        return {
            "answer": info.get("answer"),
            "verdict": info.get("verdict"),
            "solution_reward": request.inputs.get("solution_reward"),
        }


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
    answer = one.scored.info.get("answer")
    return Candidate(one.trajectory_id, preferred, answer, one.value, one.final_text)
