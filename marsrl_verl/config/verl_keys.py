"""verl's keys that have a clear meaning here: what a verl user's command line sets with them.

An override of such a key is replaced by overrides of our own before anything is composed, and said in the
plan and at start. All other keys of verl either act as in verl or are refused, with the key to set instead
(`checks/upstream.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from marsrl_verl.settings.issues import ConfigError, ConfigIssue


def _as_written(override: Override) -> str:
    return override.get_value_element_as_str()


def _every(override: Override) -> str:
    """verl's -1 is "never"."""
    value = override.value()
    return str(max(0, value)) if isinstance(value, int) else _as_written(override)


EACH, FIRST = "<role>", "<first role>"
"""In a key of ours: each of the method's roles, or the first one, which answers the problem."""


def _of_roles(name: str) -> tuple[str, ...]:
    return (f"marsrl.roles.{EACH}.{name}",)


@dataclass(frozen=True, slots=True)
class VerlKey:
    """A key of verl and the keys of ours that take its value."""

    key: str
    ours: tuple[str, ...]
    value: Callable[[Override], str] = _as_written
    """The value for our keys, as written on a command line."""


_ROLLOUT, _EVALUATION = "actor_rollout_ref.rollout", "marsrl.evaluation"

VERL_KEYS: tuple[VerlKey, ...] = (
    VerlKey(f"{_ROLLOUT}.n", ("marsrl.algo.group_size",)),
    VerlKey(f"{_ROLLOUT}.temperature", _of_roles("temperature")),
    VerlKey(f"{_ROLLOUT}.top_p", _of_roles("top_p")),
    VerlKey(f"{_ROLLOUT}.top_k", _of_roles("top_k")),
    VerlKey(f"{_ROLLOUT}.val_kwargs.n", (f"{_EVALUATION}.samples_per_problem",)),
    VerlKey(f"{_ROLLOUT}.val_kwargs.temperature", (f"{_EVALUATION}.temperature",)),
    VerlKey(f"{_ROLLOUT}.val_kwargs.top_p", (f"{_EVALUATION}.top_p",)),
    VerlKey("algorithm.norm_adv_by_std_in_grpo", ("marsrl.algo.normalize_std",)),
    VerlKey("data.max_prompt_length", (f"marsrl.roles.{FIRST}.max_prompt_tokens",)),
    VerlKey("data.max_response_length", _of_roles("max_new_tokens")),
    VerlKey("trainer.test_freq", (f"{_EVALUATION}.every",), _every),
    VerlKey("trainer.val_before_train", (f"{_EVALUATION}.before",)),
)
"""What a verl key sets here."""

ESTIMATOR = "algorithm.adv_estimator"
GROUP_RELATIVE = "grpo"
"""The one estimator of verl that names what is done here: advantages relative to a group."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Overrides in our keys."""

    overrides: tuple[str, ...]
    notes: tuple[str, ...]
    """A line for each key that was taken as one of ours."""
    estimator_named: bool
    """Whether the command line asks for group-relative advantages by verl's name."""


def translate(overrides: tuple[str, ...], roles: Callable[[], tuple[str, ...]]) -> Translated:
    """Replace overrides of `VERL_KEYS` by ours.

    Args:
        overrides: of the command line.
        roles: the roles of the chosen method; asked where a key belongs to roles.

    Raises:
        ConfigError: a key of ours is given another value beside, or an estimator is named that is not used.
    """
    by_key = {one.key: one for one in VERL_KEYS}
    parsed = [(text, OverridesParser.create().parse_override(text)) for text in overrides]
    given = {one.key_or_group: _as_written(one) for _, one in parsed if not one.is_delete()}
    kept: list[str] = []
    notes: list[str] = []
    problems: list[ConfigIssue] = []
    named = False
    for text, override in parsed:
        key = override.key_or_group
        if key == ESTIMATOR and not override.is_delete():
            if override.value() != GROUP_RELATIVE:
                problems.append(_other_estimator(override))
            named = True
        elif (one := by_key.get(key)) is None or override.is_delete():
            kept.append(text)
        else:
            value = one.value(override)
            for ours in with_roles(one.ours, roles):
                if given.get(ours, value) != value:
                    problems.append(_contradiction(key, value, ours, given[ours]))
                kept.append(f"{ours}={value}")
            notes.append(f"{text} is taken as {_listed(one.ours, roles)}={value}")
    if problems:
        raise ConfigError(problems)
    return Translated(tuple(kept), tuple(notes), named)


def with_roles(keys: tuple[str, ...], roles: Callable[[], tuple[str, ...]]) -> list[str]:
    """The keys, for the roles that they are about."""
    found = []
    for key in keys:
        if EACH in key:
            found += [key.replace(EACH, role) for role in roles()]
        else:
            found.append(key.replace(FIRST, roles()[0]) if FIRST in key else key)
    return found


def _listed(keys: tuple[str, ...], roles: Callable[[], tuple[str, ...]]) -> str:
    """The keys in one word: `marsrl.roles.{solver,verifier,corrector}.top_p`."""
    several = any(EACH in key for key in keys) and len(roles()) > 1
    return keys[0].replace(EACH, f"{{{','.join(roles())}}}") if several else with_roles(keys, roles)[0]


def _contradiction(key: str, value: str, ours: str, other: str) -> ConfigIssue:
    return ConfigIssue(
        key, f"It sets {ours} here, which the command line sets to {other}.", "Leave one of them out.", value
    )


def _other_estimator(override: Override) -> ConfigIssue:
    return ConfigIssue(
        ESTIMATOR,
        "Advantages come from the groups' role rewards; of verl's estimators only grpo names that.",
        "Leave it out; algo=grpo trains the Solver alone with group-relative advantages.",
        override.value(),
    )
