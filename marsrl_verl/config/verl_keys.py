"""verl's keys that do not act here as in verl (`tables/verl_keys.yaml`).

An override of a key with a clear meaning here is replaced by overrides of our own before anything is
composed, and said in the plan and at start. Keys that the trainer does not use, or that must stay as they
are, are rejected where they are changed, with the key to set instead (`checks/upstream.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from marsrl_verl.config.tables import read_table
from marsrl_verl.settings.issues import ConfigError, ConfigIssue


@dataclass(frozen=True, slots=True)
class Refused:
    """A key, or a node with everything below it, that may not be changed."""

    key: str
    reason: str
    instead: str
    but: Sequence[str] = ()
    """Keys below it that the trainer does use."""


_TABLE = read_table("verl_keys")
VERL_KEYS: dict[str, str] = _TABLE["taken"]
"""Our key that each of verl's keys sets."""
INERT_KEYS, FIXED_KEYS = (
    [Refused(key, **why) for key, why in _TABLE[name].items()] for name in ("inert", "fixed")
)
"""Keys that the trainer does not use, and keys that must stay as they are."""

EACH, FIRST = "<role>", "<first role>"
"""Placeholders in our keys: each of the method's roles, or the first one, which answers the problem."""
Roles = Callable[[], tuple[str, ...]]

ESTIMATOR = "algorithm.adv_estimator"
GROUP_RELATIVE = "grpo"
"""verl's name for what methods do by themselves: advantages relative to a group."""
OUR_ESTIMATOR = "marsrl.algo.estimator"
ESTIMATORS = {GROUP_RELATIVE: "group", "reinforce_plus_plus": "reinforce_pp"}
"""verl's estimators that exist here, and the value of `OUR_ESTIMATOR` with each."""


@dataclass(frozen=True, slots=True)
class Translated:
    """Overrides in our keys."""

    overrides: tuple[str, ...]
    notes: tuple[str, ...]
    """A line for each key that was taken as one of ours."""
    estimator_named: bool
    """If true, the command line names verl's estimator for group-relative advantages, `grpo`."""


def translate(overrides: tuple[str, ...], roles: Roles, first_role: Callable[[], str]) -> Translated:
    """The overrides with those of `VERL_KEYS` replaced by ours.

    Args:
        roles: the roles of the chosen method; called where a key belongs to roles.
        first_role: the one that is prompted with the problems (the first stage's); likewise.

    Raises:
        ConfigError: all keys of ours that one sets are given other values beside, or an estimator is named
            that is not used.
    """
    parsed = [(text, OverridesParser.create().parse_override(text)) for text in overrides]
    overridden = {
        one.key_or_group: one.get_value_element_as_str() for _, one in parsed if not one.is_delete()
    }
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
        elif key not in VERL_KEYS or override.is_delete():
            translated.append(text)
        else:
            value, keys = _value(override), with_roles(VERL_KEYS[key], roles, first_role)
            # The setting of a single role has precedence over that of all of them.
            general = [ours for ours in keys if overridden.get(ours, value) == value]
            if not general:
                what = f"It sets {keys[0]} here, which the command line sets to {overridden[keys[0]]}."
                problems.append(ConfigIssue(key, what, "Leave one of them out.", value))
            translated += [f"{ours}={value}" for ours in general]
            notes.append(f"{text} is taken as {_listed(general)}={value}")
    if problems:
        raise ConfigError(problems)
    return Translated(tuple(translated), tuple(notes), named)


def _value(override: Override) -> str:
    """The value for our key, as written on a command line; "never" is -1 for verl and 0 here."""
    if override.key_or_group == "trainer.test_freq" and isinstance(value := override.value(), int):
        return str(max(0, value))
    return override.get_value_element_as_str()


def with_roles(key: str, roles: Roles, first_role: Callable[[], str]) -> list[str]:
    """The key for each of the roles that it is about."""
    if EACH in key:
        return [key.replace(EACH, role) for role in roles()]
    return [key.replace(FIRST, first_role()) if FIRST in key else key]


def _listed(keys: list[str]) -> str:
    """Keys of several roles in one word: `marsrl.roles.{first,second}.top_p`."""
    if len(keys) < 2:
        return "".join(keys)
    start, _, end = keys[0].rsplit(".", 2)
    return f"{start}.{{{','.join(key.split('.')[-2] for key in keys)}}}.{end}"
