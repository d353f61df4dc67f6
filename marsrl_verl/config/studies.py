"""Parts of a configuration from `studies`, a package that only a clone of the repository has."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

from marsrl_verl.config.locations import config_folder
from marsrl_verl.config.node import leaves
from marsrl_verl.settings.issues import ConfigIssue

_NAMED = re.compile(r"(?:^|[:,])(studies(?:\.\w+)+)")
"""Matches names in `package.module:Class`, and in the arguments of `${marsrl.file:…}`."""


def missing_studies(tree: Mapping[str, Any], choices: Mapping[str, str]) -> list[ConfigIssue]:
    """One problem where modules of `studies` are named in a composed configuration, interpolations as
    written, and can't be imported; `choices` has the option chosen in each group."""
    named = {key: found for key, value in leaves(tree) if (found := _NAMED.findall(str(value)))}
    modules = sorted({module for found in named.values() for module in found})
    if not modules or _there("studies.toy_tasks") or all(map(_there, modules)):
        return []
    presets = [f"{group}={option}" for group, option in choices.items() if _is_of_studies(group, option)]
    what = (
        "It needs the folder `studies`, which comes with a clone of the repository, not with the installed "
        f"package: {', '.join(modules)} in {', '.join(named)}."
    )
    fix = (
        "Give the command in the folder of a clone, or put that folder on PYTHONPATH. The installed package "
        "has model=tiny data=tiny, and model=custom for a model and data of yours (docs/guides/models.md)."
    )
    return [ConfigIssue(" ".join(presets) or next(iter(named)), what, fix)]


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def _is_of_studies(group: str, option: str) -> bool:
    path = config_folder() / group / f"{option}.yaml"
    return path.is_file() and any(_NAMED.search(word) for word in path.read_text(encoding="utf-8").split())
