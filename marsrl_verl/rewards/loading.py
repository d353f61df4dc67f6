"""Construct classes named in the configuration."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, TypeVar

from marsrl_verl.settings.imports import ImportTargetError, blamed, import_target
from marsrl_verl.settings.issues import did_you_mean

T = TypeVar("T")


class ClassLoadError(ValueError):
    """A class named in the configuration can't be had; the message says why and what to do.

    Args:
        fix: what to do, where that is not to name another class.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.fix = fix


def load_class(target: str, kwargs: Mapping[str, Any] | None, base: type[T]) -> T:
    """Imports `package.module:ClassName` and constructs it with the keyword arguments.

    Raises:
        ClassLoadError: the module or class isn't there, the class is not derived from `base`, or its
            constructor rejects the arguments.
    """
    cls = _find(target, base)
    if not inspect.isclass(cls) or not issubclass(cls, base):
        raise ClassLoadError(f"{target}: expected a class derived from {base.__module__}:{base.__name__}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise ClassLoadError(f"{target}: the class does not define {missing}", f"Define {missing} in it.")
    arguments = dict(kwargs or {})
    _check_arguments(target, cls, arguments)
    try:
        made = cls(**arguments)
    except ClassLoadError:
        raise  # the class says itself what it can't have
    except Exception as error:
        raise ClassLoadError(
            f"{target}: the constructor failed with {blamed(error)}, kwargs: {arguments}",
            "Put the class or its kwargs right.",
        ) from error
    _check_methods(target, made, base)
    return made


def _find(target: str, base: type[Any]) -> Any:
    module_name, colon, class_name = target.partition(":")
    if not (colon and module_name and class_name) or target == "???":
        raise ClassLoadError(f"class {target!r}: expected the form package.module:ClassName")
    try:
        module, _ = import_target(target)
    except ImportTargetError as error:
        raise ClassLoadError(f"{target}: {str(error).removesuffix('.')}", error.fix) from error.__cause__
    try:
        return attrgetter(class_name)(module)
    except AttributeError as error:
        classes = [
            name
            for name, item in vars(module).items()
            if inspect.isclass(item) and issubclass(item, base) and item.__module__ == module.__name__
        ]
        raise ClassLoadError(
            f"{target}: module {module_name} has no {class_name!r}; classes there that derive from "
            f"{base.__name__}: {', '.join(sorted(classes)) or 'none'}"
        ) from error


def _check_arguments(target: str, cls: type, arguments: dict[str, Any]) -> None:
    signature = inspect.signature(cls)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        known = list(signature.parameters)
        unknown = [name for name in arguments if name not in known]
        missing = [
            name
            for name, one in signature.parameters.items()
            if one.default is one.empty
            and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            and name not in arguments
        ]
        problems = [f"unknown {unknown}"] * bool(unknown) + [f"missing {missing}"] * bool(missing)
        near = [near for name in unknown for near in did_you_mean(name, known)]
        fix = f"Did you mean {', '.join(near)}?" if near else "Leave out what it does not take."
        raise ClassLoadError(
            f"{target}: kwargs do not fit: {', '.join(problems) or error}; it takes {known}",
            f"Give {', '.join(missing)}." if missing and not unknown else fix,
        ) from error
    for name, value in arguments.items():
        kinds = _PLAIN.get(_annotation(cls, name), ())
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
            expected = kinds[0].__name__
            raise ClassLoadError(
                f"{target}: kwargs.{name} is {value!r}, expected {_WORDS[expected]}",
                f"Set it to {_WORDS[expected]}.",
            )


_PLAIN: dict[Any, tuple[type, ...]] = {bool: (bool,), int: (int,), float: (float, int), str: (str,)}
"""Annotations of which a value's type is known: what they take."""
_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


def _annotation(cls: type, name: str) -> Any:
    """A constructor parameter's type; None if there is none that can be read."""
    try:
        return typing.get_type_hints(typing.cast(Any, cls).__init__).get(name)
    except Exception:  # names that only a type checker can resolve
        return None


def _check_methods(target: str, made: object, base: type) -> None:
    """Checks that `made`'s versions of the base's abstract methods take the base's arguments; raises
    ClassLoadError if not."""
    for name in sorted(getattr(base, "__abstractmethods__", ())):
        if not inspect.isfunction(wanted := getattr(base, name)):
            continue
        parameters = list(inspect.signature(wanted).parameters.values())[1:]
        needed = [one for one in parameters if one.default is one.empty]
        try:
            found = inspect.signature(getattr(made, name))
        except ValueError:  # compiled: it has none that could be looked at
            continue
        try:
            found.bind(
                *(one for one in needed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)),
                **{one.name: one for one in needed if one.kind is one.KEYWORD_ONLY},
            )
        except TypeError as error:
            expected = ", ".join(one.name for one in needed)
            raise ClassLoadError(
                f"{target}: its {name}{found} can't be called as {name}({expected}): {error}",
                f"Let {name} take {expected}, as {base.__module__}:{base.__name__} says.",
            ) from error
