"""Tools by what `marsrl.tools.<name>.target` says: a built-in one, or `package.module:Class`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean
from marsrl_verl.tools.base import Tool, ToolConfig

NODE = "marsrl.tools"
BUILT_IN: Mapping[str, str] = {
    "python": "marsrl_verl.tools.python.tool:PythonTool",
    "search": "marsrl_verl.tools.search.tool:SearchTool",
    "browser": "marsrl_verl.tools.browser.tool:BrowserTool",
    # By name alone: only who uses verl's tools needs verl.
    "verl": "marsrl_verl.verl_adapter.rollout_server.verl_tools:VerlTool",
}
"""The names of built-in tools."""
_METHODS = ("from_settings", "schema", "call")


def tool_class(name: str, target: Any) -> type[Tool]:
    """The class of an entry's tool.

    Args:
        name: the entry.
        target: what it says.

    Raises:
        ConfigError: there is no such tool, its module can't be imported, or it is none.
    """
    key = f"{NODE}.{name}.target"
    if ":" not in str(target) and target not in BUILT_IN:
        near = did_you_mean(str(target), BUILT_IN)
        guess = f"Did you mean {near[0]}? " if near else ""
        fix = f"{guess}Built in: {', '.join(BUILT_IN)}; or name a class as package.module:Class."
        raise ConfigError([ConfigIssue(key, "There is no such tool.", fix, target)])
    try:
        return _load(BUILT_IN.get(str(target), str(target)))
    except _NoTool as error:
        raise ConfigError([ConfigIssue(key, str(error), error.fix, target)]) from error.__cause__


class _NoTool(Exception):
    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


@lru_cache
def _load(target: str) -> type[Tool]:
    # A tool of the user's may lie beside where the command is given, as with `python script.py`.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            fix = "Check the spelling, install it, or put its folder on PYTHONPATH."
            raise _NoTool(f"There is no module {missing!r}.", fix) from error
        what = f"Importing {module_name} failed with {type(error).__name__}: {error}."
        raise _NoTool(what, "Repair the module, or install what it needs.") from error
    found: Any = getattr(module, class_name, None)
    fix = f"Derive the class from {Tool.__module__}:{Tool.__name__} and define them (docs/tools.md)."
    if not (inspect.isclass(found) and Tool in found.__mro__):  # a protocol, which issubclass does not take
        what = f"{module_name} has no {class_name!r}." if found is None else f"{class_name} is no tool."
        raise _NoTool(what, fix)
    cls: type[Tool] = found
    lacks = [name for name in _METHODS if _function(cls, name) is _function(Tool, name)]
    if not (inspect.isclass(cls.Config) and issubclass(cls.Config, ToolConfig)):
        lacks.append("Config (a class derived from ToolConfig)")
    if lacks:
        raise _NoTool(f"The class does not define {', '.join(lacks)}.", fix)
    return cls


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
    """The class of an entry's settings.

    Raises:
        ConfigError: as `tool_class`, or the entry names no tool.
    """
    if "target" not in entry:
        fix = f"Set {NODE}.{name}.target to one of {', '.join(BUILT_IN)}, or to package.module:Class."
        raise ConfigError([ConfigIssue(f"{NODE}.{name}.target", "No tool is named.", fix)])
    return tool_class(name, entry["target"]).Config
