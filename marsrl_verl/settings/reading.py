"""Plain dictionaries into typed settings, and what is wrong with them as messages that name key and fix."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, TypeVar

from annotated_types import Ge
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from marsrl_verl.settings.declaration import OWN_MESSAGE, Needs, Settings, Switched
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean
from marsrl_verl.settings.rules import FORM, OwnFunction

S = TypeVar("S", bound=Settings)

_OF_VALUE = frozenset(
    {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "enum", OWN_MESSAGE}
)
"""Errors about a value of the right kind."""
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def read(model: type[S], data: Mapping[str, Any], key: str) -> S:
    """The settings of a node.

    Args:
        data: its plain values.
        key: where the node is, for messages.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_issues(error, model, key)) from error


def find_issues(
    model: type[Settings],
    data: Any,
    key: str,
    *,
    kinds_only: bool = False,
    unknown: Callable[[str, tuple[str, ...]], ConfigIssue] | None = None,
) -> list[ConfigIssue]:
    """Finds what is wrong with a node's values.

    Args:
        data: its values; interpolations (`${…}`) are not looked at.
        key: where the node is.
        kinds_only: only unknown keys and values of the wrong kind, not ranges and choices.
        unknown: the message for a key that does not exist, from it and its siblings.
    """
    try:
        model.model_validate(without_interpolations(data))
    except ValidationError as error:
        return _issues(error, model, key, kinds_only, unknown)
    return []


def without_effect(node: Settings, key: str) -> Iterator[ConfigIssue]:
    """Settings that were changed while another one takes their effect (`Needs`, `Switched`).

    Args:
        key: where the node is.
    """
    for name, field in type(node).model_fields.items():
        value = getattr(node, name)
        own = _extra(field).get("needs")
        switch = Needs("enabled", True) if isinstance(node, Switched) and name != "enabled" else None
        wanted = [one for one in (switch, own) if one is not None]
        needs = next((one for one in wanted if getattr(node, one.name) != one.value), None)
        if needs is None:
            below = value if isinstance(value, dict) else {"": value}
            for entry, one in below.items():
                if isinstance(one, Settings):
                    yield from without_effect(one, f"{key}.{name}.{entry}".rstrip("."))
            continue
        owner, path, names = (
            (value, f"{key}.{name}", ()) if isinstance(value, Settings) else (node, key, (name,))
        )
        other, found = f"{key}.{needs.name}", _written(getattr(node, needs.name))
        fix = needs.fix or f"set {other}={_written(needs.value)}"
        for changed in owner.changed(*names):
            what = f"It has no effect with {other} = {found}."
            yield ConfigIssue(f"{path}.{changed}", what, f"Leave it out, or {fix}.", getattr(owner, changed))


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_interpolations(data: Any) -> Any:
    """The values that are written out."""
    if isinstance(data, dict):
        return {
            name: without_interpolations(value)
            for name, value in data.items()
            if not (isinstance(value, str) and "${" in value)
        }
    return data


def converted(model: type[Settings], data: dict[str, Any]) -> dict[str, Any]:
    """The values of a node as its fields' types have them, interpolations as written. `find_issues` found
    nothing about their kinds; one out of its range stays as it is."""
    try:
        plain = model.model_validate(without_interpolations(data)).model_dump(mode="json")
    except ValidationError:
        return data
    return _over(data, plain)


def _over(data: Any, plain: Any) -> Any:
    if isinstance(data, dict) and isinstance(plain, dict):
        return {name: _over(value, plain[name]) if name in plain else value for name, value in data.items()}
    return data if isinstance(data, str) and "${" in data else plain


def defaults(model: type[Settings]) -> dict[str, Any]:
    """The tree of default values, as YAML has them; fields without one are left out."""
    fields = {name: one for name, one in model.model_fields.items() if not one.is_required()}
    return {name: _plain(one.get_default(call_default_factory=True)) for name, one in fields.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value.value if isinstance(value, Enum) else value


@dataclass(frozen=True, slots=True)
class Declared:
    """One setting as it is declared."""

    key: str
    kind: str
    """Type, range and choices in words."""
    default: Any
    documentation: str
    required: bool


def declared(model: type[Settings], key: str, values: Settings | None = None) -> Iterator[Declared]:
    """Every setting of a node and of those below it, in order.

    Args:
        values: the defaults, where the node above has others than `model`.
    """
    for name, field in model.model_fields.items():
        path = f"{key}.{name}"
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        default = default if values is None else getattr(values, name)
        below = _model_of(field.annotation)
        if below is None and typing.get_origin(field.annotation) is dict:
            below, path = _model_of(typing.get_args(field.annotation)[1]), f"{path}.<name>"
            default = default if below is None else None
        if below is not None:
            yield from declared(below, path, default)
            continue
        path = f"{key}.{name}"
        words = in_words(field.annotation) or "anything"
        bounds = range_in_words(field)
        if bounds.startswith("a number"):
            is_integer = words.startswith("a whole number")
            words = f"{words}, {bounds[9:]}" if is_integer else words.replace("a number", bounds, 1)
        elif bounds:
            words += f", {bounds}"
        text = " ".join(documentation(model).get(name, "").split())
        yield Declared(path, words, _plain(default), text, field.is_required())


@cache
def documentation(model: type[Settings]) -> dict[str, str]:
    """The string below each field, by its name. (pydantic's `use_attribute_docstrings` reads the sources of
    all classes whenever they are imported, in every process of a run.)"""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, Settings):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in itertools.pairwise(tree.body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found


def in_words(kind: Any) -> str | None:
    """Describes what a field takes."""
    if typing.get_origin(kind) is Annotated:
        return in_words(typing.get_args(kind)[0])
    if (below := _model_of(kind)) is not None:
        return f"the keys {', '.join(below.model_fields)} below it"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(one.value) for one in kind)}"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is OwnFunction:
        return f"a function of yours ({FORM})"
    if origin in (types.UnionType, typing.Union):
        words = [in_words(one) or "a value" for one in arguments if one is not type(None)]
        return " or ".join([*words, "null"] if type(None) in arguments else words)
    if origin is list:
        return f"a list (of {in_words(arguments[0]) or 'values'})"
    if origin is dict:
        return f"a dictionary (each value {in_words(arguments[1]) or 'anything'})"
    return _KINDS.get(kind)


def range_in_words(field: FieldInfo) -> str:
    """The range of a number; empty where it has none."""
    names = ("ge", "gt", "le", "lt")
    found = {name: getattr(one, name) for one in field.metadata for name in names if hasattr(one, name)}
    low, above, high, below = (_number(found[name]) if name in found else None for name in names)
    if low and high:
        return f"a number from {low} to {high}"
    if low and below:
        return f"a number from {low} to below {below}"
    if low:
        return f"at least {low}"
    if above and below:
        return f"a number between {above} and {below}"
    if above:
        return f"a number above {above}" + (f", at most {high}" if high else "")
    return ""


def _number(value: Any) -> str:
    return f"{value:,}" if value == int(value) and abs(value) >= 1e6 else f"{value:g}"


def _issues(
    error: ValidationError,
    model: type[Settings],
    key: str,
    kinds_only: bool = False,
    unknown: Callable[[str, tuple[str, ...]], ConfigIssue] | None = None,
) -> list[ConfigIssue]:
    return [
        _issue(model, key, one, unknown or unknown_key)
        for one in error.errors(include_url=False)
        if not (kinds_only and one["type"] in _OF_VALUE)
    ]


def _issue(model: type[Settings], node: str, error: Any, unknown: Callable[..., ConfigIssue]) -> ConfigIssue:
    path = [str(part) for part in error["loc"]]
    key = ".".join([node, *path] if node else path)
    kind = error["type"]
    if kind == "extra_forbidden":
        parent = _model_of(_find(model, path[:-1])[1])
        return unknown(key, tuple(parent.model_fields) if parent is not None else ())
    if kind == "missing":
        return ConfigIssue(key, "Nothing names a value for it.", "Set it.")
    (field, expected), value = _find(model, path), error["input"]
    if kind == OWN_MESSAGE:
        return ConfigIssue(key, error["msg"], error["ctx"]["fix"], value)
    if kind == "enum" and field is not None:
        return no_such_choice(key, value, _members(field.annotation), _extra(field).get("why") or NO_CHOICE)
    if kind in _OF_VALUE and field is not None:
        return _out_of_range(key, value, field)
    return _wrong_kind(key, value, in_words(expected))


NO_CHOICE = "There is no such choice."


def no_such_choice(key: str, value: Any, options: Sequence[str], what: str = NO_CHOICE) -> ConfigIssue:
    """A value that is not one of a closed set."""
    near = did_you_mean(str(value), options)
    guess = f"Did you mean {near[0]}? " if near else ""
    return ConfigIssue(key, what, f"{guess}Use one of: {', '.join(options)}.", value)


def unknown_key(key: str, siblings: Sequence[str], elsewhere: str | None = None) -> ConfigIssue:
    """A key that does not exist, with the nearest one that does.

    Args:
        siblings: the keys that its parent does have.
        elsewhere: a key of the same name in another node.
    """
    parent, _, name = key.rpartition(".")
    if near := did_you_mean(name, siblings):
        fix = f"Did you mean {parent + '.' if parent else ''}{near[0]}?"
    elif elsewhere is not None:
        fix = f"Did you mean {elsewhere}?"
    elif siblings:
        fix = f"{parent} has: {', '.join(siblings[:12])}{', …' if len(siblings) > 12 else ''}."
    else:
        fix = "Leave it out."
    return ConfigIssue(key, "There is no such key.", fix)


def _out_of_range(key: str, value: Any, field: FieldInfo) -> ConfigIssue:
    extra, bounds, fix = _extra(field), range_in_words(field), f"Set {range_in_words(field)}."
    what = f"Expected {bounds}: {extra['why']}." if extra.get("why") else f"Expected {bounds}."
    if bounds.startswith("at least"):
        least: Any = next(one.ge for one in field.metadata if isinstance(one, Ge))
        fix = f"Set {key} to {least:g} or more."
    return ConfigIssue(key, what, extra.get("fix") or fix, value)


def _extra(field: FieldInfo) -> dict[str, Any]:
    """Returns what a declaration says beside type and range (`declaration.limits`)."""
    return typing.cast(dict[str, Any], field.json_schema_extra or {})


def _wrong_kind(key: str, value: Any, kind: str | None) -> ConfigIssue:
    if kind and kind.startswith("a list"):
        fix = f"Write '{key}=[a,b]'"
    elif kind and kind.startswith("the keys"):
        fix = f"Leave {key} out and set a key below it"
    else:
        fix = "Leave it out, or give a value of that type"
    if key.startswith("marsrl."):
        fix += "; docs/reference/settings.md documents every key"
    what = f"The value has the wrong type; expected {kind or 'another'}."
    return ConfigIssue(key, what, f"{fix}.", value)


def _find(model: type[Settings], path: Sequence[str]) -> tuple[FieldInfo | None, Any]:
    """The field that a path leads to, None for an entry of a dictionary or a list, and its type; None for
    what is not there."""
    field: FieldInfo | None = None
    kind: Any = model
    for name in path:
        below = _model_of(kind)
        if below is not None and name in below.model_fields:
            field = below.model_fields[name]
            kind = field.annotation
        elif below is None and typing.get_origin(kind) in (dict, list):
            field, kind = None, typing.get_args(kind)[-1]
        else:
            return None, None
    return field, kind


def _model_of(kind: Any) -> type[Settings] | None:
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _members(kind: Any) -> list[str]:
    kinds = [kind, *typing.get_args(kind)]
    names = [
        str(one.value) for enum in kinds if isinstance(enum, type) and issubclass(enum, Enum) for one in enum
    ]
    return [*names, *(FORM for one in kinds if typing.get_origin(one) is OwnFunction)]
