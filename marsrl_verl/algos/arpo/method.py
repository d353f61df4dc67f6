"""ARPO: an agent with tools, whose trajectories branch after tool calls (arXiv 2507.19849).

One stage. A problem's group has M trajectories: N of them begin at the prompt, the others are forks of these
after a tool's result (`rollout`, `branching`, `budget`), or further roots. Advantages are relative to the
group; `advantages` has a choice for tokens that trajectories share. The policy loss is verl's. Without forks
it is GRPO, DAPO or REINFORCE++ with tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.arpo import config as settings_of
from marsrl_verl.algos.arpo.advantages import Attribution, token_advantages
from marsrl_verl.algos.arpo.config import SOLVER
from marsrl_verl.algos.arpo.figures import ROOTS, AgentEvaluation, agent_metrics
from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.algos.arpo.rollout import PROGRAM
from marsrl_verl.core.credit import EstimatorCredit
from marsrl_verl.core.credit.advantages import group_relative
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Role, Traits
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.stage import Stage
from marsrl_verl.evaluation.single_role import answer_metrics

AGENT = "agent"
"""The only stage."""


class SharedTokenCredit(EstimatorCredit):
    """The estimator's advantages; for tokens that trajectories share, those by `attribution`."""

    config: settings_of.Config

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """Returns (N,) the advantages by token."""
        if self.config.attribution is Attribution.SOFT:
            return super().advantages(rows)
        values = group_relative(rows, normalize_std=self.config.normalize_std)
        return token_advantages(rows, values, self.config.attribution)


class ARPO(Method):
    """One stage, a group of tool-using trajectories to a problem."""

    Config = settings_of.Config
    Prompts = AgentPrompts
    Credit = SharedTokenCredit
    roles: ClassVar[Mapping[str, Role]] = {
        SOLVER: Role(answers=True, reward="marsrl_verl.algos.arpo.rewards:HierarchicalReward")
    }

    config: settings_of.Config

    @classmethod
    def stages(cls, config: settings_of.Config) -> tuple[Stage, ...]:
        """Returns the only stage, with a group for each problem."""
        return (Stage(AGENT, SOLVER, config.group_size, rollout=PROGRAM),)

    @classmethod
    def traits(cls, config: settings_of.Config) -> Traits:
        """Returns traits with turns: a token's turn is the one between two calls."""
        return Traits(has_turn_ids=True)

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: Any, prompts: AgentPrompts
    ) -> AgentEvaluation:
        """Returns the evaluation: one trajectory with tools and without forks."""
        return AgentEvaluation(SOLVER, prompts, PROGRAM, config.protocol)

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """Returns figures of the answers, of the tool calls and of the trees."""
        return answer_metrics(groups, (SOLVER,)) | agent_metrics(groups)

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """Returns one group's request; none if the problem's prompt is too long."""
        roots = self.config.budget(self.config.group_size).roots
        inputs = {"protocol": str(self.config.protocol), ROOTS: roots}
        return [replace(one, inputs=inputs) for one in super().first_requests(problem, step)]
