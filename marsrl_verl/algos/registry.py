"""Methods by `marsrl.algo.name`: the name of an installed one, or `package.module:Class`.

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
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any

import marsrl_verl.algos
from marsrl_verl.core.credit import Credit
from marsrl_verl.core.method import Method, Role
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.schedule import Schedule
from marsrl_verl.settings.declaration import MethodConfig
from marsrl_verl.settings.evaluation import EvaluationConfig
from marsrl_verl.settings.imports import ImportTargetError, import_target, source_of
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean

GROUP = "marsrl_verl.methods"
"""Group of entry points."""
KEY = "marsrl.algo.name"


@lru_cache(maxsize=1)
def installed_methods() -> dict[str, str]:
    """Returns the methods that have a name: name -> `package.module:Class`."""
    found = {one.name: one.value for one in entry_points(group=GROUP)}
    for module in pkgutil.iter_modules(marsrl_verl.algos.__path__):
        if module.ispkg:
            package = importlib.import_module(f"{marsrl_verl.algos.__name__}.{module.name}")
            if target := getattr(package, "METHOD", None):
                found[module.name] = target
            found |= getattr(package, "METHODS", {})
    return dict(sorted(found.items()))


def method_class(name: object) -> type[Method]:
    """Returns the class of a method.

    Raises:
        ConfigError: no method has this name, its class can't be imported, or is no sound method.
    """
    target = str(name)
    if ":" not in target:
        known = installed_methods()
        if target not in known:
            near = did_you_mean(target, known)
            guess = f"Did you mean {near[0]}? " if near else ""
            fix = f"{guess}Installed: {', '.join(known)}; or name a class as package.module:Class."
            raise ConfigError([ConfigIssue(KEY, "There is no such method.", fix, name)])
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
        fix = f"Methods in {module.__name__}: {', '.join(there) or 'none'} (docs/guides/new_method.md)."
        raise ConfigError([ConfigIssue(KEY, what, fix, target)])
    if faults := [
        ConfigIssue(KEY, what, f"Correct {source_of(cls, text)} (docs/guides/new_method.md).", target)
        for what, text in declaration_faults(cls)
    ]:
        raise ConfigError(faults)
    return cls


_PARTS: dict[str, Any] = {
    "Config": MethodConfig,
    "Evaluation": EvaluationConfig,
    "Prompts": Prompts,
    "Credit": Credit,
    "Schedule": Schedule,
}
"""Class attributes of a method, and the base class of each."""


def declaration_faults(cls: type[Method]) -> Iterator[tuple[str, str]]:
    """Yields the faults in the class attributes of a method, each with the name or text that is wrong."""
    for name, base in _PARTS.items():
        found = getattr(cls, name)
        if not (inspect.isclass(found) and issubclass(found, base)):
            what = f"expected a class derived from {base.__name__}, found {found!r}."
            yield f"{cls.__name__}.{name}: {what}", name
        elif inspect.isabstract(found):
            missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
            yield f"{cls.__name__}.{name} = {found.__name__} does not define {missing}.", name
    for part in (cls.Credit, cls.Schedule):
        needed = getattr(part, "Config", MethodConfig)
        if inspect.isclass(cls.Config) and not issubclass(cls.Config, needed):
            what = f"expected a class derived from {needed.__module__}:{needed.__name__}, which "
            what += f"{part.__name__} reads, found {cls.Config.__name__}."
            yield f"{cls.__name__}.Config: {what}", "Config"
    yield from _role_faults(cls)


def _role_faults(cls: type[Method]) -> Iterator[tuple[str, str]]:
    roles: Any = cls.roles
    if not isinstance(roles, Mapping) or not roles:
        what = f"expected a mapping {{'solver': Role(answers=True)}}, found {roles!r}."
        yield f"{cls.__name__}.roles: {what}", "roles"
        return
    for name, role in roles.items():
        if not isinstance(role, Role):
            yield f"{cls.__name__}.roles[{name!r}]: expected a Role, found {role!r}.", str(name)
        if not str(name).isidentifier() or name == "default":
            what = f"has {name!r}: expected a word, and another one than default."
            yield f"{cls.__name__}.roles {what}", str(name)
