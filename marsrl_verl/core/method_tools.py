"""Tools that methods, schedules and their like are built with, beside their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marsrl_verl.core.request import Message


@dataclass(frozen=True, slots=True)
class MethodTools:
    """Tools that a method is built with, beside its settings."""

    prompts: Any
    """The object of `marsrl.prompts`."""
    prompt_tokens: Callable[[tuple[Message, ...]], int] | None = None
    """Tokens of a chat under the model's template, generation prompt included; None: prompts are not
    measured."""
    max_prompt_tokens: Mapping[str, int | None] = field(default_factory=dict)
    """Longest prompt of each role; None: no limit (a role that another model plays)."""
    tokenizer: Any = None
    """The model's tokenizer."""
    seed: int = 0
    """All random choices derive from it and from ids."""
    problems: int = 1
    """Problems per step as configured (`data.train_batch_size`)."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Name of the policy of each role; unknown for roles that are left out."""
    frozen_roles: frozenset[str] = frozenset()
    """Roles whose policy is not trained here."""
    settings: Any = None
    """The whole `marsrl` node."""

    def fits(self, role: str, messages: tuple[Message, ...]) -> bool:
        """True if a chat is within its role's limit."""
        limit = self.max_prompt_tokens.get(role)
        return limit is None or self.prompt_tokens is None or self.prompt_tokens(messages) <= limit
