"""Declaration of a setting: type, range, choices, default and documentation, once.

    class PipelineSettings(Settings):
        '''Which rollout requests are decoded in which training step.'''

        min_groups: int = limits(1, ge=1, why="1 is no floor")
        '''Fewer groups than this make no update.'''

The docstring under a field is its documentation. What a declaration says is checked by `settings.reading` and
nowhere else; rules between several settings stand beside what needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.lengths import longest_sequence
from marsrl_verl.settings.run_view import RunView

UNSET = "???"
"""Stands for a value that the user has to name (OmegaConf's mark)."""
OWN_MESSAGE = "setting"
"""Type of a validation error whose message is what was expected, with `fix` in its context."""


class Settings(BaseModel):
    """A node of settings; unknown keys are rejected."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, coerce_numbers_to_str=True, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _a_flag_is_no_number(cls, value: Any, info: Any) -> Any:
        """pydantic takes true for 1."""
        kind = cls.model_fields[info.field_name].annotation
        if isinstance(value, bool) and ({kind, *get_args(kind)} & {int, float}):
            raise PydanticCustomError("int_type", "true or false")
        return value

    def changed(self, *names: str) -> list[str]:
        """Fields (of those named, else of all) that have another value than the default."""
        fields = type(self).model_fields
        return [
            name
            for name in names or fields
            if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]


@dataclass(frozen=True, slots=True)
class Needs:
    """The value of another setting of the node without which a setting has no effect."""

    name: str
    value: Any
    fix: str = ""
    """Advice on what to do, in place of "set KEY=VALUE"."""


class Switched(Settings):
    """A node whose other settings have no effect while it is off."""

    enabled: bool = False


def limits(
    default: Any,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    why: str = "",
    fix: str = "",
    needs: Needs | None = None,
) -> Any:
    """A number with a range.

    Args:
        default: its value where none is set.
        ge, gt, le, lt: at least, above, at most, below.
        why: the reason, for the message.
        fix: what to do, in place of "Set it to … or more".
        needs: what it has an effect with.
    """
    extra: Any = {"why": why, "fix": fix, "needs": needs}
    return Field(default, ge=ge, gt=gt, le=le, lt=lt, json_schema_extra=extra)


def only_with(needs: Needs, node: type[Settings]) -> Any:
    """A node that has an effect with one value of another setting."""
    extra: Any = {"needs": needs}
    return Field(default_factory=node, json_schema_extra=extra)


def top_p(default: float | None, fix: str = "1.0 keeps all.") -> Any:
    """The share of the probability mass that sampling keeps."""
    return limits(default, gt=0.0, le=1.0, fix=fix)


LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0


def temperature(why: str) -> Any:
    """A sampling temperature that the engine takes as it is: vLLM rejects higher ones at the first request,
    and raises lower ones to 0.01 with a warning only, so that log-probabilities would belong to another
    policy."""
    return limits(1.0, ge=LOWEST_TEMPERATURE, le=HIGHEST_TEMPERATURE, why=f"vLLM samples at no other; {why}")


class ClassSpec(Settings):
    """A class of ours or of the user's, with its keyword arguments."""

    target: str = UNSET
    """`package.module:ClassName`; imported and constructed before Ray starts."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the constructor."""


class RewardSpec(ClassSpec):
    """A role's reward."""

    timeout_s: float = limits(
        300.0,
        ge=0.1,
        le=86_400.0,
        why="seconds, a day at most",
        fix="Leave it out (300), or set what the slowest grade takes.",
    )
    """Most seconds of one call of `score`. A call that takes longer is a failed grade: its sample is not
    trained. Time that a call waits for a thread does not count."""
    max_failed_frac: float = limits(
        0.1,
        ge=0.0,
        le=1.0,
        why="it is a share of a round's grades",
        fix="0.1 is the default; 1 lets a run go on while one grade succeeds.",
    )
    """Most grades of the role, as a share of a round's, in which the reward may raise or return no result.
    More of them in two rounds running end the run."""
    max_unanswered_frac: float = limits(
        0.5,
        ge=0.0,
        le=1.0,
        why="it is a share of a round's grades",
        fix="0.5 is the default; 1 lets a run go on while one grade succeeds.",
    )
    """The same for calls over `timeout_s` and services that do not answer (`ServiceError`)."""


UNCUT = {"top_p": 1.0, "top_k": -1}
"""A role's settings with which its tokens are sampled from the whole vocabulary."""


class RoleSampling(Settings):
    """Policy of a role, how its tokens are sampled, and how fast its policy learns."""

    policy: str | None = None
    """Name of its policy: one of `marsrl.policies`, or `shared`, the model's own; null: by
    `marsrl.default_policy`."""

    max_prompt_tokens: int = limits(1024, ge=1, why="a prompt has a token")
    """Inputs with a longer prompt are not eligible (never truncated)."""
    max_new_tokens: int = limits(1024, ge=1, why="a response has a token")
    """A response that reaches this many tokens ends with finish reason `length` and reward 0."""
    max_sequence_tokens: int | None = limits(None, ge=2, why="a prompt and a response have a token each")
    """Most tokens of prompt and response together: what the prompt leaves free, the response may use, up to
    `max_new_tokens`; null: the sum of the two limits."""
    temperature: float = temperature("at 0 all responses of a group are equal, and nothing can be learnt")
    """Above 0. Roles may differ: log-probabilities are computed at each row's own temperature. (Fused kernels
    take one for all roles of a policy.)"""
    top_p: float = top_p(1.0)
    """Nucleus sampling: the likeliest tokens up to this total probability are kept; 1 keeps all."""
    top_k: int = -1
    """-1 keeps the whole vocabulary."""
    lr: float | None = limits(None, gt=0, le=1, why="it is the optimizer's step")
    """Learning rate of its policy, where the run trains several (`marsrl.default_policy`); null:
    `actor_rollout_ref.actor.optim.lr`. Roles that share a policy have the same."""

    @field_validator("top_k")
    @classmethod
    def _all_or_positive(cls, value: int) -> int:
        if value != -1 and value < 1:
            context = {"fix": "-1 keeps the whole vocabulary."}
            raise PydanticCustomError(OWN_MESSAGE, "Expected -1 or at least 1.", context)
        return value

    @property
    def cuts(self) -> dict[str, float]:
        """Settings that cut the distribution that is sampled from, with their values."""
        return {name: getattr(self, name) for name, value in UNCUT.items() if getattr(self, name) != value}

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest prompt and response together."""
        return longest_sequence(self.max_prompt_tokens, self.max_new_tokens, self.max_sequence_tokens)


class MethodConfig(Settings):
    """Settings that every method has; each adds its own (`core.method.Method.Config`)."""

    preset_values: ClassVar[Mapping[str, float]] = {}
    """verl's settings, by key, that the method's presets set and that may stay where they can't act: clip
    ranges for runs with several updates, what goes with a KL term that is switched off."""
    resumable: ClassVar[frozenset[str]] = frozenset()
    """Settings of this class that may change when a run continues; the others, but for those of its bases,
    are bound to the checkpoint."""

    name: str
    """The method: the name of an installed one, or `package.module:Class`."""
    group_size: int = limits(8, ge=2, why="advantages compare the responses of a group")
    """Responses per rollout request (G)."""

    @classmethod
    def is_resumable(cls, name: str) -> bool:
        """True if a setting may change when a run continues."""
        return any(name in getattr(base, "resumable", ()) for base in cls.__mro__)

    def checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Rules between several settings, these and others."""
        return ()

    def file_checks(self, run: RunView) -> Iterable[ConfigIssue]:
        """Rules that look at the prompts' class or at the model's files, once `checks` found nothing."""
        return ()

    def plan_lines(self, run: RunView) -> Iterable[str]:
        """Lines of the printed plan below the table of stages."""
        return ()
