"""GRPO: group-relative policy optimisation (arXiv 2402.03300).

Each problem is answered G times by one role, in one call, which may take several segments. A response's
advantage is its reward relative to its group's (`algos.estimator` has another choice). Groups whose rewards
are all equal are not trained (DAPO, arXiv 2503.14476, §3.2). The policy loss is verl's. It is evaluated as
one role is: avg@k, pass@k, majority.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.base import BaseMethod, PromptLimits
from marsrl_verl.algos.estimator import (
    EstimatorConfig,
    estimated_advantages,
    estimated_rows,
    estimator_checks,
    has_contrast,
)
from marsrl_verl.algos.mastered_tokens import MasteredTokens
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import MethodTools, RunView, Stage, StagePlan
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.settings.issues import ConfigIssue

SOLVER = "solver"
"""Its one role, and its one stage."""


class GRPOConfig(EstimatorConfig):
    """Independent responses to a problem (GRPO, arXiv 2402.03300)."""

    name: str = "grpo"
    """The method."""


class GRPO(BaseMethod):
    """One stage, one group of responses to a problem, group-relative advantages."""

    Config = GRPOConfig
    roles = (SOLVER,)
    answering_roles = (SOLVER,)
    stages = (Stage(SOLVER, SOLVER),)
    preset_values: ClassVar[Mapping[str, float]] = {
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }
    kl_in_reward = True
    resumable = frozenset({"estimator", "gamma", "normalize_std", "mastered_tokens"})

    def __init__(self, prompts: Prompts, config: GRPOConfig, limits: PromptLimits | None = None) -> None:
        mastered = MasteredTokens.from_config(config.mastered_tokens)
        super().__init__(prompts, config.group_size, limits, mastered)
        self.config = config

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> GRPO:
        """Build the method from the `marsrl` node."""
        return cls(tools.prompts, settings.algo, cls.prompt_limits(settings, tools))

    @classmethod
    def plan(cls, config: GRPOConfig) -> tuple[StagePlan, ...]:
        """A group for each problem."""
        return (StagePlan(SOLVER, SOLVER, 1, True, config.group_size),)

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """What the estimator has to know."""
        return estimator_checks(run)

    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether the estimator has anything to compare."""
        return has_contrast(self.config, groups)

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """All that the estimator gives an advantage to."""
        return estimated_rows(self.config, groups)

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The estimator's."""
        return estimated_advantages(self.config, rows)

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """The answer that was found in the response."""
        return {"answer": trajectory.scored.info.get("answer")}
