"""Settings under their former names (`tables/renamed.yaml`), which are read for one release, with a note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from marsrl_verl.config.node import chosen_method
from marsrl_verl.config.tables import read_table
from marsrl_verl.reporting.record import setting_of
from marsrl_verl.settings.issues import ConfigError, ConfigIssue
from marsrl_verl.settings.reading import defaults
from marsrl_verl.tools.registry import BUILT_IN

_TABLE = read_table("renamed")
RENAMED: dict[str, str] = _TABLE["settings"]
"""Former names, and the names now."""
RENAMED_VALUES: dict[str, dict[Any, Any]] = _TABLE["values"]
"""Settings by their names now: former values, and the values now."""
_METHOD, _TOOLS = "marsrl.algo.", "marsrl.tools."


def rename_overrides(words: Iterable[str]) -> tuple[tuple[str, ...], list[str]]:
    """Overrides with the settings that every run has under their names now, and a note for each; those
    of methods and tools have theirs once a configuration is composed (`rename_settings`). ConfigError: a
    setting is named both ways."""
    words = list(words)
    named = _named(words)
    if both := [key for key in named & RENAMED.keys() if RENAMED[key] in named]:
        raise ConfigError([_twice(key, RENAMED[key]) for key in sorted(both)])
    found, notes = [], []
    for word in words:
        key = setting_of(word)
        new = RENAMED.get(key)
        if new is None or key.startswith(_METHOD):
            found.append(word)
        else:
            found.append(word.replace(key, new, 1))
            notes.append(_note(key, new))
    return tuple(found), notes


def rename_settings(config: DictConfig, words: Iterable[str]) -> list[str]:
    """Gives settings of a composed configuration their names now; returns a note for each. ConfigError: the
    command line (`words`) sets one under both names."""
    named = _named(words)
    notes, problems = [], []
    for old, new in _present(config):
        if old in named and new in named:
            problems.append(_twice(old, new))
            continue
        value = _taken(config, old)
        if new not in named:  # else a file has the former name, and the command line the last word
            values = RENAMED_VALUES.get(new, {})
            value = values.get(value, value) if isinstance(value, str) else value
            OmegaConf.update(config, new, value, merge=False, force_add=True)
        notes.append(_note(old, new))
    if problems:
        raise ConfigError(problems)
    return notes


def _named(words: Iterable[str]) -> set[str]:
    """The settings that words name, also inside of dictionaries."""
    nodes: list[tuple[str, Any]] = []
    for word in words:
        try:
            value = OverridesParser.create().parse_override(word).value()
        except HydraException:
            value = None  # `check_overrides` says so
        nodes.append((setting_of(word), value))
    for key, value in nodes:  # which grow
        if isinstance(value, dict):
            nodes += [(f"{key}.{name}", one) for name, one in value.items()]
    return {key for key, _ in nodes}


def _twice(old: str, new: str) -> ConfigIssue:
    return ConfigIssue(old, f"It is named {new} now, which is set as well.", "Leave it out.")


def _note(old: str, new: str) -> str:
    return f"{old} is named {new} now; the next release rejects the former name"


def _present(config: DictConfig) -> Iterator[tuple[str, str]]:
    """Former names in a configuration, and what they are named now."""
    for old, new in RENAMED.items():
        parent, _, name = old.rpartition(".")
        if old.startswith(_TOOLS):
            tools = OmegaConf.select(config, _TOOLS.rstrip("."), throw_on_missing=False)
            kind = parent.rpartition("@")[2].rstrip(">") if "@" in parent else None
            entries = {str(tool): one for tool, one in tools.items()} if isinstance(tools, DictConfig) else {}
            for tool, entry in entries.items():
                if (
                    isinstance(entry, DictConfig)
                    and name in entry
                    and (kind is None or entry.get("target") in (kind, BUILT_IN[kind]))
                ):
                    yield f"{_TOOLS}{tool}.{name}", f"{_TOOLS}{tool}.{new}"
        elif name in _node(config, parent) and (not old.startswith(_METHOD) or _has(config, new, old)):
            yield old, new


def _node(config: DictConfig, key: str) -> dict[Any, Any]:
    """The node of a key with interpolations as written; empty where there is none."""
    node = OmegaConf.select(config, key, throw_on_resolution_failure=False)
    plain = OmegaConf.to_container(node, resolve=False) if isinstance(node, DictConfig) else {}
    return plain if isinstance(plain, dict) else {}


def _has(config: DictConfig, new: str, old: str) -> bool:
    """True if the chosen method has the setting under its name now, and none of the former name."""
    try:
        node: Any = {"algo": defaults(chosen_method(_node(config, "marsrl.algo")).Config)}
    except ConfigError:
        return False  # the checks say so
    own = OmegaConf.create({"marsrl": node})
    known = [key.rpartition(".")[2] in _node(own, key.rpartition(".")[0]) for key in (new, old)]
    return known == [True, False]


def _taken(config: DictConfig, key: str) -> Any:
    """The value of a setting as written, which is removed."""
    parent, _, name = key.rpartition(".")
    value = _node(config, parent)[name]
    del OmegaConf.select(config, parent)[name]
    return value
