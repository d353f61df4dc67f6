"""What a method says about itself before it runs: its settings, rules between them, and its plan.

A method is a class derived from `Method`, in one folder or module, here or anywhere else. Checks, plan and
trainer find it through `algos.registry` and know no method by name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from marsrl_verl.core.algorithm import Algorithm
from marsrl_verl.core.types import Message
from marsrl_verl.settings.declaration import MethodConfig
from marsrl_verl.settings.issues import ConfigIssue


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage and the most it can hold."""

    name: str
    role: str
    groups_per_problem: int
    """Upper bound: fewer when no output is eligible as an input."""
    trained: bool
    """Whether its role enters the loss."""
    group_size: int
    """Responses of a group."""

    @property
    def samples_per_problem(self) -> int:
        """Most responses to one problem at this stage."""
        return self.groups_per_problem * self.group_size


@dataclass(frozen=True, slots=True)
class MethodTools:
    """What a method is built with, beside its settings."""

    prompts: Any
    """The object of `marsrl.prompts`."""
    tokenizer: Any
    """The model's."""
    prompt_tokens: Callable[[tuple[Message, ...]], int]
    """Tokens of a chat under the model's template, generation prompt included."""
    problems: int
    """Problems per step as configured (`data.train_batch_size`)."""


class RunView(Protocol):
    """A configuration as a method's checks see it."""

    @property
    def settings(self) -> Any:
        """The `marsrl` node, typed; `settings.algo` is the method's `Config`."""

    @property
    def on_cpu(self) -> bool:
        """Whether the run trains on the processor."""

    @property
    def external_solver(self) -> bool:
        """Whether another model than the trained one answers for `Method.external_role`."""

    def get(self, key: str) -> Any:
        """The value of any dotted key, verl's included; None where it is missing."""

    def prompts(self) -> Any:
        """The object of `marsrl.prompts`."""

    def model_config(self) -> dict[str, Any] | None:
        """What the model's `config.json` says, with the configured overrides; None where it is not here."""


class Method(Algorithm):
    """A method that a configuration can name."""

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    """The settings of `marsrl.algo`."""
    roles: ClassVar[tuple[str, ...]]
    """Roles that are asked, in training or in the evaluation of the method."""
    answering_roles: ClassVar[tuple[str, ...]] = ()
    """Roles whose responses answer the problem: what a reward function of verl's scores."""
    external_role: ClassVar[str | None] = None
    """The role that another model may play (`marsrl.external_solver`)."""
    records_log_probs: ClassVar[bool] = False
    """Whether `marsrl.off_policy.mode = recorded` finds the trainer's log-probabilities of a sample."""
    group_relative: ClassVar[bool] = True
    """Whether advantages are those that verl calls `grpo`."""
    fused_kernels: ClassVar[bool] = True
    """Whether the trainer's forward pass may spare the logits of all tokens."""
    preset_clips: ClassVar[Mapping[str, float]] = {}
    """`actor.clip_ratio_…` that the method's presets set for runs with several updates."""
    resumable: ClassVar[frozenset[str]] = frozenset()
    """Own settings that may change when a run continues; the others are bound to the checkpoint."""

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> Method:
        """Build the method from checked settings (the whole `marsrl` node)."""

    @classmethod
    @abstractmethod
    def plan(cls, config: Any) -> tuple[StagePlan, ...]:
        """The stages with the most they can hold; `config` is a `Config`."""

    @classmethod
    def most_problems(cls, config: Any, configured: int) -> int:
        """Most new problems of a step."""
        return configured

    @classmethod
    def asked_roles(cls, config: Any, evaluation_rounds: int) -> tuple[str, ...]:
        """The roles that a run asks: engine and trainer must have room for them.

        Args:
            config: a `Config`.
            evaluation_rounds: `marsrl.evaluation.correction_rounds`.
        """
        return cls.roles

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """Rules between several settings, of the method's own and of others."""
        return []

    @classmethod
    def file_checks(cls, run: RunView) -> list[ConfigIssue]:
        """Rules that look at the prompts' class or at the model's files; `checks` found nothing."""
        return []

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """What the printed plan says below the table of stages."""
        return []
