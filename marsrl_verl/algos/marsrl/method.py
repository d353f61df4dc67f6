"""MarsRL: Solver, Verifier and Corrector trained together on shared weights (arXiv 2511.11373, §3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from marsrl_verl.algos.marsrl.selection import Candidate, Strategy, choose
from marsrl_verl.algos.prompts import PromptTokens, RolePrompts
from marsrl_verl.core.advantages import RoleBalance, sample_advantages
from marsrl_verl.core.algorithm import Algorithm, Credit, Stage
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

if TYPE_CHECKING:
    from marsrl_verl.config.schema import AlgoConfig

E = TypeVar("E", bound=Enum)


class SelectScope(str, Enum):
    """Over what the K inputs of the next stage are counted."""

    PROBLEM = "problem"
    """K per problem, pooled over the groups of its stage: 1 + 2 + 2 + 2 + 2 groups with K = 2."""
    GROUP = "group"
    """K per group: 1 + 2 + 4 + 8 + 16 groups with K = 2."""


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


class MarsRL(Algorithm):
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

    def __init__(
        self,
        prompts: RolePrompts,
        *,
        seed: int,
        group_size: int = 8,
        inputs_per_stage: int = 2,
        correction_rounds: int = 2,
        strategy: Strategy | str = Strategy.ADAPTIVE,
        scope: SelectScope | str = SelectScope.PROBLEM,
        distinct_answers: bool = False,
        train_roles: tuple[str, ...] = ROLES,
        limits: PromptLimits | None = None,
        normalize_std: bool = True,
        role_balance: RoleBalance | str = RoleBalance.TOKENS,
        role_weights: Mapping[str, float] | None = None,
    ) -> None:
        for name, value, least in (
            ("group_size", group_size, 2),
            ("inputs_per_stage", inputs_per_stage, 1),
            ("correction_rounds", correction_rounds, 0),
        ):
            if value < least:
                raise ValueError(f"algo.{name} is {value}, expected at least {least}")
        self.prompts = prompts
        self.seed = seed
        self.group_size = group_size
        self.inputs_per_stage = inputs_per_stage
        self.strategy = Strategy(strategy)
        self.scope = SelectScope(scope)
        self.distinct_answers = distinct_answers
        self.train_roles = frozenset(train_roles)
        self.limits = limits
        self.normalize_std = normalize_std
        self.role_balance = RoleBalance(role_balance)
        self.role_weights = dict(role_weights or {})
        self.stages = _stages(correction_rounds, self.train_roles)

    @classmethod
    def from_config(
        cls,
        cfg: AlgoConfig,
        prompts: RolePrompts,
        seed: int,
        *,
        prompt_tokens: PromptTokens | None = None,
        max_prompt_tokens: Mapping[str, int | None] | None = None,
    ) -> MarsRL:
        """Build the method from the `marsrl.algo` node.

        Args:
            cfg: the node.
            prompts: the roles' wording.
            seed: the run's seed; all choices derive from it.
            prompt_tokens: measures a chat; without it prompts of every length are eligible.
            max_prompt_tokens: the limit by role, None for a role without one; belongs to `prompt_tokens`.

        Raises:
            ValueError: a setting is out of range; the message names the key.
        """
        if (prompt_tokens is None) != (max_prompt_tokens is None):
            raise ValueError("prompt_tokens and max_prompt_tokens belong together, found only one of them")
        limits = None
        if prompt_tokens is not None and max_prompt_tokens is not None:
            missing = [role for role in ROLES if role not in max_prompt_tokens]
            if missing:
                raise ValueError(f"max_prompt_tokens has no limit for {missing}")
            limits = PromptLimits(prompt_tokens, dict(max_prompt_tokens))
        return cls(
            prompts,
            seed=seed,
            group_size=cfg.group_size,
            inputs_per_stage=cfg.inputs_per_stage,
            correction_rounds=cfg.correction_rounds,
            strategy=_member(Strategy, "selection", cfg.selection),
            scope=_member(SelectScope, "select_scope", cfg.select_scope),
            distinct_answers=cfg.distinct_answers,
            train_roles=tuple(cfg.train_roles),
            limits=limits,
            normalize_std=cfg.normalize_std,
            role_balance=_member(RoleBalance, "role_balance", cfg.role_balance),
            role_weights=cfg.role_weights,
        )

    def first_inputs(self, problem: Problem, step: int) -> list[StageInput]:
        """One Solver group; none when the problem does not fit the Solver's prompt limit."""
        draft = Draft(self.prompts.solver(problem))
        return [self._input(problem, 0, 0, step, draft)] if self._fits(SOLVER, draft.messages) else []

    def next_inputs(
        self, problem: Problem, stage_index: int, groups: list[Group], step: int
    ) -> list[StageInput]:
        """Up to K inputs (per problem or per group) chosen from the stage's eligible outputs."""
        stage = self.stages[stage_index + 1]
        pools = [groups] if self.scope is SelectScope.PROBLEM else [[group] for group in groups]
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
            if self.scope is SelectScope.GROUP:
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
            distinct = self.distinct_answers and role == VERIFIER
            picks = choose(candidates, self.inputs_per_stage, self.strategy, rng, distinct_answers=distinct)
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
            normalize_std=self.normalize_std,
            role_balance=self.role_balance,
            role_weights=self.role_weights,
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
            n=self.group_size,
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


def _member(enum: type[E], key: str, value: str) -> E:
    known = [str(member.value) for member in enum]
    if value not in known:
        raise ValueError(f"algo.{key} is {value!r}, expected one of: {', '.join(known)}")
    return enum(value)
