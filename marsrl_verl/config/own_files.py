"""Settings in configuration files of the user's that the chosen method does not have.

Our presets are for several methods, and their settings and roles of other methods are left out. In a file of
the user's such a setting is reported: as an error in a preset of the method (group `algo`), as a warning in
any other file, since that one may be for several methods too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from marsrl_verl.config.node import (
    BY_ROLE,
    chosen_method,
    dropped_settings,
    foreign_settings,
    leaves,
    other_methods_setting,
    unknown_role,
)
from marsrl_verl.settings.issues import ConfigIssue

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


def without_effect(
    folders: Sequence[Path], names: Iterable[str], node: Mapping[str, Any]
) -> tuple[list[ConfigIssue], list[str]]:
    """Problems and warnings about what the user's files of a composition set and the method does not have.

    Args:
        folders: the user's; the first one that has a file counts.
        names: files that were composed, as `group/option`, or a root configuration's name.
        node: the composed `marsrl` node, before the method's defaults are filled in.
    """
    method = chosen_method(node["algo"])
    defaults, dropped = foreign_settings(method), dropped_settings(node)
    issues: list[ConfigIssue] = []
    warnings: list[str] = []
    for name, path, key, value in _settings(folders, names):
        parts = key.split(".")
        if key in dropped and value and value != defaults[key]:
            issue = other_methods_setting(key, node, value)
        elif len(parts) > 3 and parts[0] == "marsrl" and parts[1] in BY_ROLE:
            if parts[2] in (*method.roles, "default"):
                continue
            issue = unknown_role(".".join(parts[:3]), parts[2], tuple(method.roles))
        else:
            continue
        line = f"{path}: {issue.key} has no effect. {issue.what} {issue.fix}"
        if name.startswith("algo/"):
            issues.append(issue)
        elif line not in warnings:
            warnings.append(line)
    return issues, warnings


def _settings(folders: Sequence[Path], names: Iterable[str]) -> Iterator[tuple[str, Path, str, Any]]:
    """Each value that the files set: the file's name and place, its key, itself."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop(0)
        path = next((one for folder in folders if (one := folder / f"{name}.yaml").is_file()), None)
        if path is None or path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        node = yaml.safe_load(text) or {}
        group = name.rpartition("/")[0]
        # Other entries are choices of groups, which Hydra names.
        files = [one.partition("@")[0] for one in node.pop("defaults", None) or () if isinstance(one, str)]
        waiting += [
            one.removeprefix("/") if one.startswith("/") or not group else f"{group}/{one}" for one in files
        ]
        package = _PACKAGE.search(text)
        prefix = group.replace("/", ".") if package is None else package[1].replace("_global_", "")
        for key, value in leaves(node, prefix):
            yield name, path, key, value
