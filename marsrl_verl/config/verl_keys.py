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
Roles = Callable[[], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class VerlKey:
    """A key of verl and the key of ours that takes its value."""

    key: str
    ours: str
    value: Callable[[Override], str] = _as_written
    """The value for our key, as written on a command line."""


_ROLLOUT, _ROLES, _EVALUATION = "actor_rollout_ref.rollout", f"marsrl.roles.{EACH}", "marsrl.evaluation"

VERL_KEYS: tuple[VerlKey, ...] = (
    VerlKey(f"{_ROLLOUT}.n", "marsrl.algo.group_size"),
    VerlKey(f"{_ROLLOUT}.temperature", f"{_ROLES}.temperature"),
    VerlKey(f"{_ROLLOUT}.top_p", f"{_ROLES}.top_p"),
    VerlKey(f"{_ROLLOUT}.top_k", f"{_ROLES}.top_k"),
    VerlKey(f"{_ROLLOUT}.val_kwargs.n", f"{_EVALUATION}.samples_per_problem"),
    VerlKey(f"{_ROLLOUT}.val_kwargs.temperature", f"{_EVALUATION}.temperature"),
    VerlKey(f"{_ROLLOUT}.val_kwargs.top_p", f"{_EVALUATION}.top_p"),
    VerlKey("algorithm.norm_adv_by_std_in_grpo", "marsrl.algo.normalize_std"),
    VerlKey("algorithm.gamma", "marsrl.algo.gamma"),
    VerlKey("data.max_prompt_length", f"marsrl.roles.{FIRST}.max_prompt_tokens"),
    VerlKey("data.max_response_length", f"{_ROLES}.max_new_tokens"),
    VerlKey("trainer.test_freq", f"{_EVALUATION}.every", _every),
    VerlKey("trainer.val_before_train", f"{_EVALUATION}.before"),
)
"""What a verl key sets here."""

ESTIMATOR = "algorithm.adv_estimator"
GROUP_RELATIVE = "grpo"
"""verl's name of what methods do by themselves: advantages relative to a group."""
OUR_ESTIMATOR = "marsrl.algo.estimator"
ESTIMATORS = {GROUP_RELATIVE: "group", "reinforce_plus_plus": "reinforce_pp"}
"""Those of verl that there are here, and what `OUR_ESTIMATOR` is with them."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Overrides in our keys."""

    overrides: tuple[str, ...]
    notes: tuple[str, ...]
    """A line for each key that was taken as one of ours."""
    estimator_named: bool
    """Whether the command line asks for group-relative advantages by verl's name."""


def translate(overrides: tuple[str, ...], roles: Roles, first_role: Callable[[], str]) -> Translated:
    """Replace overrides of `VERL_KEYS` by ours.

    Args:
        overrides: of the command line.
        roles: the roles of the chosen method; asked where a key belongs to roles.
        first_role: the one that is asked the problems (the first stage's); likewise.

    Raises:
        ConfigError: all keys of ours that one sets are given other values beside, or an estimator is named
            that is not used.
    """
    by_key = {one.key: one for one in VERL_KEYS}
    parsed = [(text, OverridesParser.create().parse_override(text)) for text in overrides]
    overridden = {one.key_or_group: _as_written(one) for _, one in parsed if not one.is_delete()}
    translated: list[str] = []
    notes: list[str] = []
    problems: list[ConfigIssue] = []
    named = False
    for text, override in parsed:
        key = override.key_or_group
        if key == ESTIMATOR and not override.is_delete():
            ours = ESTIMATORS.get(override.value())
            named = override.value() == GROUP_RELATIVE
            if ours is None:
                what = f"Of verl's estimators there are {' and '.join(ESTIMATORS)} here."
                fix = "Leave it out: advantages are the method's (algo=…)."
                problems.append(ConfigIssue(key, what, fix, override.value()))
            elif overridden.get(OUR_ESTIMATOR, ours) != ours:
                what = f"The command line sets {OUR_ESTIMATOR} to {overridden[OUR_ESTIMATOR]}."
                problems.append(ConfigIssue(key, what, "Leave one of them out.", override.value()))
            elif not named:
                translated.append(f"{OUR_ESTIMATOR}={ours}")
                notes.append(f"{text} is taken as {OUR_ESTIMATOR}={ours}")
        elif (one := by_key.get(key)) is None or override.is_delete():
            translated.append(text)
        else:
            value, keys = one.value(override), with_roles(one.ours, roles, first_role)
            # What is said of a single role counts more than what is said of all of them.
            general = [ours for ours in keys if overridden.get(ours, value) == value]
            if not general:
                what = f"It sets {keys[0]} here, which the command line sets to {overridden[keys[0]]}."
                problems.append(ConfigIssue(key, what, "Leave one of them out.", value))
            translated += [f"{ours}={value}" for ours in general]
            notes.append(f"{text} is taken as {_listed(general)}={value}")
    if problems:
        raise ConfigError(problems)
    return Translated(tuple(translated), tuple(notes), named)


def with_roles(key: str, roles: Roles, first_role: Callable[[], str]) -> list[str]:
    """The key, for the roles that it is about."""
    if EACH in key:
        return [key.replace(EACH, role) for role in roles()]
    return [key.replace(FIRST, first_role()) if FIRST in key else key]


def _listed(keys: list[str]) -> str:
    """Keys of several roles in one word: `marsrl.roles.{first,second}.top_p`."""
    if len(keys) < 2:
        return "".join(keys)
    start, _, end = keys[0].rsplit(".", 2)
    return f"{start}.{{{','.join(key.split('.')[-2] for key in keys)}}}.{end}"
