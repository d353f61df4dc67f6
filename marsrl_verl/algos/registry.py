"""Methods by what `marsrl.algo.name` says: an installed one's name, or `package.module:Class`.

A package makes a method known with an entry point of group `marsrl_verl.methods`:

    [project.entry-points."marsrl_verl.methods"]
    mine = "my_package.method:MyMethod"

Our own are the folders of this package whose `__init__` names a class in `METHOD`, or several in `METHODS` by
their names; they need no installed metadata, so a checkout on the path has them too.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import lru_cache
from importlib.metadata import entry_points

import marsrl_verl.algos
from marsrl_verl.core.method import Method
from marsrl_verl.settings.imports import ImportTargetError, import_target
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean

GROUP = "marsrl_verl.methods"
"""Group of entry points."""
KEY = "marsrl.algo.name"


@lru_cache(maxsize=1)
def installed_methods() -> dict[str, str]:
    """The methods that can be had by name: name -> `package.module:Class`."""
    found = {one.name: one.value for one in entry_points(group=GROUP)}
    for module in pkgutil.iter_modules(marsrl_verl.algos.__path__):
        if module.ispkg:
            package = importlib.import_module(f"{marsrl_verl.algos.__name__}.{module.name}")
            if target := getattr(package, "METHOD", None):
                found[module.name] = target
            found |= getattr(package, "METHODS", {})
    return dict(sorted(found.items()))


def method_class(name: object) -> type[Method]:
    """The class of a method.

    Raises:
        ConfigError: no method has this name, its class can't be imported, or is no method.
    """
    target = str(name)
    if ":" not in target:
        known = installed_methods()
        if target not in known:
            raise ConfigError([_unknown(name, known)])
        target = known[target]
    return _load(target)


@lru_cache
def _load(target: str) -> type[Method]:
    try:
        module, class_name = import_target(target)
    except ImportTargetError as error:
        raise ConfigError([ConfigIssue(KEY, str(error), error.fix, target)]) from error.__cause__
    cls = getattr(module, class_name, None)
    if not (inspect.isclass(cls) and issubclass(cls, Method)):
        found = "no such name" if cls is None else repr(cls)
        there = sorted(
            one
            for one, item in vars(module).items()
            if inspect.isclass(item) and issubclass(item, Method) and item.__module__ == module.__name__
        )
        what = f"Expected a class derived from {Method.__module__}:{Method.__name__}, found {found}."
        fix = f"Methods in {module.__name__}: {', '.join(there) or 'none'} (docs/new_method.md)."
        raise ConfigError([ConfigIssue(KEY, what, fix, target)])
    if inspect.isabstract(cls):
        what = f"The class does not define {', '.join(sorted(cls.__abstractmethods__))}."
        raise ConfigError([ConfigIssue(KEY, what, "Define them (docs/new_method.md).", target)])
    return cls


def _unknown(name: object, known: dict[str, str]) -> ConfigIssue:
    near = did_you_mean(str(name), known)
    guess = f"Did you mean {near[0]}? " if near else ""
    fix = f"{guess}Installed: {', '.join(known)}; or name a class as package.module:Class."
    return ConfigIssue(KEY, "There is no such method.", fix, name)
