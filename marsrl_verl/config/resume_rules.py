"""Rules for settings that change when a run continues: every setting is in one of four classes.

A resumed run is built from the new settings, and then takes weights, the optimizer's moments, pools and the
position in the data from the checkpoint. So a changed setting either acts from the next step on, or the
checkpoint does not fit it. A key that no rule names is bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from marsrl_verl.config.node import chosen_method, leaves
from marsrl_verl.config.reference import ABSENT, default_of
from marsrl_verl.config.tables import read_table
from marsrl_verl.config.verl_keys import FIXED_KEYS, INERT_KEYS
from marsrl_verl.core.method import Method


class Rule(Enum):
    """Effect of a changed setting on the run that continues."""

    ACTS = "acts"
    """It acts from the next step on."""
    FOLDER = "folder"
    """It acts, but evaluations in the run's folder were made with the old value: only in another
    folder."""
    BOUND = "bound"
    """The checkpoint does not fit another value."""
    INERT = "inert"
    """The trainer does not read it."""


TABLE: dict[str, list[str]] = read_table("resume_rules")
_RULES: dict[str, Rule] = {
    **{item.key: Rule.INERT for item in (*INERT_KEYS, *FIXED_KEYS)},
    **{key: rule for rule in (Rule.BOUND, Rule.FOLDER, Rule.ACTS) for key in TABLE[rule.value]},
}
_NAMED = ("reward", "roles", "policies", "tools")
"""Nodes of ours with an entry for each role, policy or tool."""
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?(\.?[A-Za-z_][\w.]*)\s*[,}]")


def rule_of(key: str, method: type[Method] | None = None) -> Rule | None:
    """The class of a setting: that of the longest rule that is the key or a node above it; None: no rule. The
    method says which of its own settings act from the next step on."""
    parts = key.split(".")
    own = method is not None and parts[:2] == ["marsrl", "algo"] and len(parts) > 2
    if method is not None and own and method.Config.is_resumable(parts[2]):
        return Rule.ACTS
    if len(parts) > 3 and parts[0] == "marsrl" and parts[1] in _NAMED:
        parts[2] = "*"  # whatever the role, policy or tool
    above = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((_RULES[one] for one in above if one in _RULES), None)


def changed_settings(new: Any, raw: Any, old: Any) -> Iterator[tuple[str, Any, Any, Rule]]:
    """Settings that differ from the record of the run that is continued: key, new and old value, class. One
    that follows from another (interpolations as written in `raw`) that differs is left out."""
    values, before = dict(leaves(new)), dict(leaves(old))
    differing = {
        key: (values.get(key), before.get(key))
        for key in {**values, **before}
        if _differs(key, values, before)
    }
    written = dict(leaves(raw))
    algo = new.get("marsrl", {}).get("algo")
    method = None if algo is None else chosen_method(algo)
    for key, (value, was) in differing.items():
        if not _follows(key, written.get(key), differing):
            yield key, value, was, rule_of(key, method) or Rule.BOUND


def _differs(key: str, new: dict[str, Any], old: dict[str, Any]) -> bool:
    if key in new and key in old:
        return bool(plain(new[key]) != plain(old[key]))
    if new.get(key, old.get(key)) in ({}, None) or _is_node(key, new) or _is_node(key, old):
        return False  # an empty dictionary, or one whose entries are looked at
    # An entry of a free dictionary came or went; a key of ours or of verl's came or went with a version.
    return default_of(key) is ABSENT


def _is_node(key: str, values: dict[str, Any]) -> bool:
    return any(other.startswith(f"{key}.") for other in values)


def _follows(key: str, written: Any, differing: dict[str, Any]) -> bool:
    if not isinstance(written, str):
        return False
    parent = key.rpartition(".")[0]
    names = [f"{parent}{name}" if name.startswith(".") else name for name in _REFERENCE.findall(written)]
    return any(other == name or other.startswith(f"{name}.") for name in names for other in differing)


def plain(value: Any) -> Any:
    """A value that compares by what it means: one file as a list of one, paths as absolute ones."""
    if isinstance(value, list):
        items = [plain(item) for item in value]
        return items[0] if len(items) == 1 else items
    if isinstance(value, str) and value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().absolute())
    return value
