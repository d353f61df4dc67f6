"""What the methods here have in common: a first stage that asks the problems, within the limits of prompts,
and UloRL's masking. A method elsewhere may derive from it too, or from `core.method.Method` itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from marsrl_verl.algos.mastered_tokens import MasteredTokens, MasteredTokensConfig
from marsrl_verl.core.method import Method, MethodTools
from marsrl_verl.core.prompts import Prompts, PromptTokens
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import Rows
from marsrl_verl.settings.declaration import MethodConfig


class BaseConfig(MethodConfig):
    """What these methods' settings have in common."""

    mastered_tokens: MasteredTokensConfig = Field(default_factory=MasteredTokensConfig)
    """Which tokens of correct responses are left out of the loss."""


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Longest prompts, and how they are measured."""

    tokens: PromptTokens
    max_tokens: Mapping[str, int | None]
    """By role; None: no limit, nothing is measured (a role that another model plays)."""

    def fits(self, role: str, messages: tuple[Message, ...]) -> bool:
        """Whether the chat is within its role's limit."""
        limit = self.max_tokens[role]
        return limit is None or self.tokens(messages) <= limit


class BaseMethod(Method):
    """A method whose first stage asks each problem once, with G responses.

    Args:
        prompts: words the problems.
        group_size: G.
        limits: longest prompts; None: prompts of every length are asked.
        mastered: which tokens are left out of the loss; None: no tokens.
    """

    Config: ClassVar[type[MethodConfig]] = BaseConfig

    def __init__(
        self,
        prompts: Prompts,
        group_size: int,
        limits: PromptLimits | None = None,
        mastered: MasteredTokens | None = None,
    ) -> None:
        self.prompts, self.group_size, self.limits = prompts, group_size, limits
        self.mastered = mastered or MasteredTokens()

    @classmethod
    def prompt_limits(cls, settings: Any, tools: MethodTools) -> PromptLimits:
        """Those of the roles in the checked `marsrl` node."""
        limits = settings.prompt_limits
        return PromptLimits(tools.prompt_tokens, {role: limits.get(role) for role in cls.roles})

    def fits(self, role: str, messages: tuple[Message, ...]) -> bool:
        """Whether the chat is within its role's limit."""
        return self.limits is None or self.limits.fits(role, messages)

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """One group of the first stage; none where the problem's prompt is too long."""
        stage, messages = self.stages[0], self.prompts.problem(problem)
        if not self.fits(stage.role, messages):
            return []
        name = f"{problem.problem_id}/{stage.name}/0"
        return [
            RolloutRequest(
                name, problem, stage.name, stage.role, messages, self.group_size, created_step=step
            )
        ]

    def masks(self, rows: Rows, advantages: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """Well-mastered tokens of correct responses (UloRL), where that is on."""
        return self.mastered.masks(rows, advantages)

    @property
    def masks_by_entropy(self) -> bool:
        """Whether UloRL's masking is on."""
        return self.mastered.config.enabled

    def token_shares(self, rows: Rows, advantages: NDArray[np.float32]) -> dict[str, NDArray[np.bool_]]:
        """Well-mastered tokens, whether they are left out or not."""
        return {"mastered_token_share": self.mastered.mastered(rows, advantages)}
