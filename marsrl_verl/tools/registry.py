"""Tools by what `marsrl.tools.<name>.target` says: a built-in one, or `package.module:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from marsrl_verl.settings.imports import ImportTargetError, import_target
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean
from marsrl_verl.tools.base import Tool, ToolConfig

NODE = "marsrl.tools"
BUILT_IN: Mapping[str, str] = {
    "python": "marsrl_verl.tools.python.tool:PythonTool",
    "search": "marsrl_verl.tools.search.tool:SearchTool",
    "browser": "marsrl_verl.tools.browser.tool:BrowserTool",
    "deep_search": "marsrl_verl.tools.browser.deep_search:DeepSearchTool",
    # By name alone: only who uses verl's tools needs verl.
    "verl": "marsrl_verl.verl_adapter.rollout_server.verl_tools:VerlTool",
}
"""The names of built-in tools."""
_METHODS = ("from_settings", "schema", "call")


def tool_class(name: str, target: Any) -> type[Tool]:
    """The class of the tool that an entry's `target` names; ConfigError if there is no such tool, its module
    can't be imported, or it is none."""
    key = f"{NODE}.{name}.target"
    if ":" not in str(target) and target not in BUILT_IN:
        near = did_you_mean(str(target), BUILT_IN)
        guess = f"Did you mean {near[0]}? " if near else ""
        fix = f"{guess}Built in: {', '.join(BUILT_IN)}; or name a class as package.module:Class."
        raise ConfigError([ConfigIssue(key, "There is no such tool.", fix, target)])
    try:
        return _load(BUILT_IN.get(str(target), str(target)))
    except ImportTargetError as error:
        raise ConfigError([ConfigIssue(key, str(error), error.fix, target)]) from error.__cause__


@lru_cache
def _load(target: str) -> type[Tool]:
    module, class_name = import_target(target)
    found: Any = getattr(module, class_name, None)
    fix = f"Derive the class from {Tool.__module__}:{Tool.__name__} and define them (docs/guides/tools.md)."
    if not (inspect.isclass(found) and Tool in found.__mro__):  # a protocol, which issubclass does not take
        what = f"{module.__name__} has no {class_name!r}." if found is None else f"{class_name} is no tool."
        raise ImportTargetError(what, fix)
    cls = cast("type[Tool]", found)
    lacks = [name for name in _METHODS if _function(cls, name) is _function(Tool, name)]
    if not (inspect.isclass(cls.Config) and issubclass(cls.Config, ToolConfig)):
        lacks.append("Config (a class derived from ToolConfig)")
    if lacks:
        raise ImportTargetError(f"The class does not define {', '.join(lacks)}.", fix)
    return cls


def can_fork(cls: type[Tool]) -> bool:
    """True if a fork of a trajectory has the state of a tool that its own calls have brought about."""
    return not cls.keeps_state or _function(cls, "fork") is not _function(Tool, "fork")


def _function(cls: type, name: str) -> Any:
    found = getattr(cls, name, None)
    return getattr(found, "__func__", found)


def installed_tools() -> dict[str, type[Tool]]:
    """The built-in tools whose packages are installed, by name."""
    found = {}
    for name in BUILT_IN:
        try:
            found[name] = tool_class(name, name)
        except ConfigError:
            continue  # what it needs is not there; who names it is told
    return found


def tool_config(name: str, entry: Mapping[str, Any]) -> type[ToolConfig]:
    """The class of an entry's settings; ConfigError as `tool_class` has it, or if the entry names no tool."""
    if "target" not in entry:
        fix = f"Set {NODE}.{name}.target to one of {', '.join(BUILT_IN)}, or to package.module:Class."
        raise ConfigError([ConfigIssue(f"{NODE}.{name}.target", "No tool is named.", fix)])
    return tool_class(name, entry["target"]).Config
