"""ARPO: an agent with tools, whose trajectories branch after tool calls (arXiv 2507.19849).

One stage. A problem's group has M trajectories: N of them begin at the prompt, the others are forks of these
after a tool's result (`rollout`, `branching`, `budget`), or further roots. Advantages are relative to the
group; of tokens that trajectories share, `advantages` has a choice. The policy loss is verl's. Without forks
it is GRPO, DAPO or REINFORCE++ with tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.arpo import checks as rules
from marsrl_verl.algos.arpo import config as settings_of
from marsrl_verl.algos.arpo.advantages import Attribution, token_advantages
from marsrl_verl.algos.arpo.config import SOLVER
from marsrl_verl.algos.arpo.evaluation import AgentEvaluation
from marsrl_verl.algos.arpo.figures import ROOTS, agent_metrics
from marsrl_verl.algos.arpo.rollout import PROGRAM
from marsrl_verl.algos.base import BaseMethod, PromptLimits
from marsrl_verl.algos.estimator import estimated_advantages, estimated_rows, has_contrast
from marsrl_verl.algos.mastered_tokens import MasteredTokens
from marsrl_verl.core.advantages import group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import MethodTools, RunView, Stage, StagePlan
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.evaluation.single_role import answer_metrics
from marsrl_verl.settings.issues import ConfigIssue

AGENT = "agent"
"""Its one stage."""


class ARPO(BaseMethod):
    """One stage, a group of tool-using trajectories to a problem."""

    Config = settings_of.Config
    default_prompts = "marsrl_verl.algos.arpo.prompts:AgentPrompts"
    roles = (SOLVER,)
    answering_roles = (SOLVER,)
    rewards: ClassVar[Mapping[str, str]] = {SOLVER: "marsrl_verl.algos.arpo.rewards:HierarchicalReward"}
    rollouts = (PROGRAM,)
    rollout = PROGRAM
    stages = (Stage(AGENT, SOLVER),)
    preset_values: ClassVar[Mapping[str, float]] = {
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }
    kl_in_reward = True
    notes_turns = True
    resumable = frozenset({"estimator", "gamma", "normalize_std", "mastered_tokens", "attribution"})

    def __init__(
        self, prompts: Prompts, config: settings_of.Config, limits: PromptLimits | None = None
    ) -> None:
        mastered = MasteredTokens.from_config(config.mastered_tokens)
        super().__init__(prompts, config.group_size, limits, mastered)
        self.config = config

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> ARPO:
        """Build the method from the `marsrl` node."""
        return cls(tools.prompts, settings.algo, cls.prompt_limits(settings, tools))

    @classmethod
    def plan(cls, config: settings_of.Config) -> tuple[StagePlan, ...]:
        """A group for each problem."""
        return (StagePlan(AGENT, SOLVER, 1, True, config.group_size),)

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `checks.checks`."""
        return rules.checks(run)

    @classmethod
    def file_checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `checks.file_checks`."""
        return rules.file_checks(run)

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """See `checks.plan_lines`."""
        return rules.plan_lines(run)

    @classmethod
    def evaluation(cls, config: settings_of.Config, evaluation: Any, prompts: Prompts) -> AgentEvaluation:
        """One trajectory with tools and without forks."""
        return AgentEvaluation(SOLVER, prompts, PROGRAM, config.protocol)

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """What the answers are worth, and how they came about."""
        return answer_metrics(groups, cls.answering_roles) | agent_metrics(groups)

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """One group; none where the problem's prompt is too long."""
        roots = self.config.budget(self.config.group_size).roots
        inputs = {"protocol": str(self.config.protocol), ROOTS: roots}
        found = super().first_requests(problem, step)
        return [replace(one, rollout=PROGRAM, inputs=inputs) for one in found]

    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether the estimator has anything to compare."""
        return has_contrast(self.config, groups)

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """All that the estimator gives an advantage to."""
        return estimated_rows(self.config, groups)

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The estimator's, of shared tokens as `attribution` has it."""
        if self.config.attribution is Attribution.SOFT:
            return estimated_advantages(self.config, rows)
        values = group_relative(rows, normalize_std=self.config.normalize_std)
        return token_advantages(rows, values, self.config.attribution)

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """The answer that was found in the response."""
        return {"answer": trajectory.scored.info.get("answer")}
