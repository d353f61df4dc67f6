"""MarsRL: Solver, Verifier and Corrector trained together on shared weights (arXiv 2511.11373, §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marsrl_verl.algos.marsrl import config as settings_of
from marsrl_verl.algos.marsrl.config import SelectScope
from marsrl_verl.algos.marsrl.selection import Candidate, choose
from marsrl_verl.algos.prompts import PromptTokens, RolePrompts
from marsrl_verl.core.advantages import sample_advantages
from marsrl_verl.core.algorithm import Credit, Stage
from marsrl_verl.core.method import Method, MethodTools, RunView, StagePlan
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.types import (
    CORRECTOR,
    ROLES,
    SOLVER,
    VERIFIER,
    Group,
    Message,
    Problem,
    Sample,
    StageInput,
    Verdict,
    is_correct,
)
from marsrl_verl.settings.issues import ConfigIssue


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Longest prompts, and how they are measured."""

    tokens: PromptTokens
    max_tokens: Mapping[str, int | None]
    """By role; None: no limit, nothing is measured (a Solver that is another model)."""

    def fits(self, role: str, messages: tuple[Message, ...]) -> bool:
        """Whether the chat is within its role's limit."""
        limit = self.max_tokens[role]
        return limit is None or self.tokens(messages) <= limit


@dataclass(frozen=True, slots=True)
class Draft:
    """What a stage input is made of before it has a place."""

    messages: tuple[Message, ...]
    parent_id: str | None = None
    solution: str | None = None
    solution_reward: float | None = None


class MarsRL(Method):
    """The chain Solver, then (Verifier, Corrector) x rounds; stages after the last trained role are left
    out, since nothing would be learnt from them.

    - Verifier inputs are finished solutions with a final text; Corrector inputs are finished Verifier
      answers with verdict Wrong, together with the solution they judged. An input whose prompt is
      too long is not eligible. Without an eligible output the problem ends.
    - K inputs per problem and stage, chosen by `strategy`. For a Verifier, incorrect solutions are the
      preferred class; for a Corrector, verdicts that are right (reward 1) (§3.4). With `distinct_answers` a
      Verifier is shown one solution of each final answer at most.
    - A group whose rewards are all equal is not trained, but still feeds the next stage.
    """

    Config = settings_of.Config
    roles = ROLES
    answering_roles = (SOLVER, CORRECTOR)
    external_role = SOLVER
    resumable = frozenset(
        {
            "selection",
            "distinct_answers",
            "normalize_std",
            "role_balance",
            "role_weights",
            "mastered_tokens",
        }
    )

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
            ValueError: a setting is out of range, or no stage has a trained role.
        """
        self.config = settings_of.Config(**settings) if config is None else config
        self.prompts, self.seed, self.limits = prompts, seed, limits
        self.train_roles = frozenset(self.config.train_roles)
        self.stages = _stages(self.config.correction_rounds, self.train_roles)

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> MarsRL:
        """Build the method from the `marsrl` node."""
        longest: dict[str, int | None] = {role: settings.roles[role].max_prompt_tokens for role in ROLES}
        if settings.external_solver.answers:
            longest[SOLVER] = None  # its prompts are not ours to measure
        limits = PromptLimits(tools.prompt_tokens, longest)
        return cls(tools.prompts, settings.algo, seed=settings.run.seed, limits=limits)

    @classmethod
    def plan(cls, config: settings_of.Config) -> tuple[StagePlan, ...]:
        """The chain, and K inputs of each stage after the first."""
        return settings_of.stage_plans(config)

    @classmethod
    def asked_roles(cls, config: settings_of.Config, evaluation_rounds: int) -> tuple[str, ...]:
        """The Solver alone where neither training nor evaluation has rounds."""
        return ROLES if config.correction_rounds > 0 or evaluation_rounds > 0 else (SOLVER,)

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `config.checks`."""
        return settings_of.checks(run)

    def first_inputs(self, problem: Problem, step: int) -> list[StageInput]:
        """One Solver group; none when the problem does not fit the Solver's prompt limit."""
        draft = Draft(self.prompts.solver(problem))
        return [self._input(problem, 0, 0, step, draft)] if self._fits(SOLVER, draft.messages) else []

    def next_inputs(
        self, problem: Problem, stage_index: int, groups: list[Group], step: int
    ) -> list[StageInput]:
        """Up to K inputs (per problem or per group) chosen from the stage's eligible outputs."""
        stage = self.stages[stage_index + 1]
        pools = [groups] if self.config.select_scope is SelectScope.PROBLEM else [[group] for group in groups]
        chosen: list[Draft] = []
        for pool in pools:
            drafts: dict[str, Draft] = {}
            candidates: list[Candidate] = []
            for group in pool:
                for sample in _without_repeats(group.samples):
                    draft = self._draft(problem, stage.role, group, sample)
                    if draft is not None:
                        drafts[sample.sample_id] = draft
                        candidates.append(_candidate(stage.role, sample))
            names = [problem.problem_id, stage.name]
            if self.config.select_scope is SelectScope.GROUP:
                names.append(pool[0].input.group_id)
            chosen += self._choose_fitting(stage.role, candidates, drafts, names)
        return [self._input(problem, stage_index + 1, slot, step, draft) for slot, draft in enumerate(chosen)]

    def _choose_fitting(
        self, role: str, candidates: list[Candidate], drafts: dict[str, Draft], names: list[str]
    ) -> list[Draft]:
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
                self.config.inputs_per_stage,
                self.config.selection,
                rng,
                distinct_answers=distinct,
            )
            too_long = {
                pick.sample_id for pick in picks if not self._fits(role, drafts[pick.sample_id].messages)
            }
            if not too_long:
                return [drafts[pick.sample_id] for pick in picks]
            candidates = [candidate for candidate in candidates if candidate.sample_id not in too_long]

    def trains(self, group: Group) -> bool:
        """Whether the role is trained and the rewards are not all equal (0 < #correct < G)."""
        return group.input.role in self.train_roles and len(set(group.rewards)) > 1

    def credit(self, groups: Sequence[Group]) -> Credit:
        """Group-relative advantages, the same for all tokens of a sample (`core.advantages`)."""
        found = sample_advantages(
            groups,
            normalize_std=self.config.normalize_std,
            role_balance=self.config.role_balance,
            role_weights=self.config.role_weights,
        )
        lengths = {sample.sample_id: len(sample.response_ids) for group in groups for sample in group.samples}
        return {name: ((lengths[name], advantage),) for name, advantage in found.items()}

    def _draft(self, problem: Problem, role: str, group: Group, sample: Sample) -> Draft | None:
        """What `role` would be asked about a sample of the preceding stage; None if not eligible (its
        prompt's length apart)."""
        if not sample.finished or not sample.final_text:
            return None
        if sample.outcome is not None and not sample.outcome.graded:
            return None  # without the truth about a response nobody can be scored for judging it
        if role == VERIFIER:
            messages = self.prompts.verifier(problem, sample.final_text)
            return Draft(messages, sample.sample_id, sample.final_text, sample.reward)
        judged, outcome = group.input, sample.outcome
        if outcome is None or outcome.verdict is not Verdict.WRONG or judged.solution is None:
            return None
        report = sample.final_text if outcome.report is None else outcome.report
        messages = self.prompts.corrector(problem, judged.solution, report)
        return Draft(messages, sample.sample_id, judged.solution, judged.solution_reward)

    def _input(self, problem: Problem, stage_index: int, slot: int, step: int, draft: Draft) -> StageInput:
        stage = self.stages[stage_index]
        return StageInput(
            group_id=f"{problem.problem_id}/{stage.name}/{slot}",
            problem=problem,
            stage=stage.name,
            stage_index=stage_index,
            role=stage.role,
            messages=draft.messages,
            n=self.config.group_size,
            parent_id=draft.parent_id,
            solution=draft.solution,
            solution_reward=draft.solution_reward,
            created_step=step,
        )

    def _fits(self, role: str, messages: tuple[Message, ...]) -> bool:
        return self.limits is None or self.limits.fits(role, messages)


def _stages(correction_rounds: int, train_roles: frozenset[str]) -> tuple[Stage, ...]:
    unknown = sorted(train_roles - set(ROLES))
    if unknown:
        raise ValueError(f"algo.train_roles names {unknown}, known roles: {', '.join(ROLES)}")
    stages = [Stage(SOLVER, SOLVER)]
    for number in range(1, correction_rounds + 1):
        stages += [Stage(f"{role}_{number}", role) for role in (VERIFIER, CORRECTOR)]
    while stages and stages[-1].role not in train_roles:
        stages.pop()
    absent = sorted(train_roles - {stage.role for stage in stages})
    if absent:
        raise ValueError(
            f"algo.train_roles has {absent}, but no stage has these roles with algo.correction_rounds="
            f"{correction_rounds}; raise correction_rounds or remove them"
        )
    if not stages:
        raise ValueError(f"algo.train_roles is empty, expected at least one of: {', '.join(ROLES)}")
    return tuple(stages)


def _without_repeats(samples: list[Sample]) -> list[Sample]:
    """Without an external Solver's further answers with the same text, of which a file with few answers has
    many: as inputs they would be one group twice."""
    seen: set[str] = set()
    kept = []
    for sample in samples:
        if sample.external and sample.text in seen:
            continue
        seen.add(sample.text)
        kept.append(sample)
    return kept


def _candidate(role: str, sample: Sample) -> Candidate:
    """For the inputs of `role`; preferred (§3.4) are incorrect solutions for the Verifier, rightly found
    errors for the Corrector."""
    preferred = not is_correct(sample.reward) if role == VERIFIER else is_correct(sample.reward)
    answer = sample.outcome.answer if sample.outcome is not None else None
    return Candidate(sample.sample_id, preferred, answer)
