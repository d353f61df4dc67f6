"""Readable problems for what Hydra and OmegaConf raise while a configuration is composed."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from typing import Any

import yaml

from marsrl_verl.config.command_line import unknown_key_problem
from marsrl_verl.config.reference import all_keys, find_unknown
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.settings.issues import NO_VALUE, ConfigError, ConfigIssue, did_you_mean

_WRONG_TYPE = (
    "could not be converted",
    "Cannot convert",
    "is not a supported",
    "is not Optional",
    "Incompatible value",
    "Invalid type assigned",
    "Cannot assign",
)
_KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def explain(error: Exception, groups: tuple[str, ...]) -> ConfigIssue:
    """A readable problem for an exception of Hydra or OmegaConf."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return cause.problems[0]
        cause = cause.__cause__ or cause.__context__
    text = _whole_text(error)
    key = _first_match(
        text,
        r"interpolation '\$\{([\w.]+)\}'",
        r"full_key: ([\w.\[\]]+)",
        r"[Oo]verrid(?:e|ing) '?([\w.]+)",
        r"config '?([\w./]+)",
    )
    if key is not None and (unknown := find_unknown(key)) is not None:
        return unknown_key_problem(unknown.key, unknown.siblings, groups)
    if isinstance(error, yaml.YAMLError):
        return ConfigIssue(
            "YAML", f"A configuration file cannot be read: {error}", "Put the YAML right there."
        )
    if absent := _first_match(text, r"Interpolation key '([^']+)' not found"):
        near = did_you_mean(absent, all_keys())
        return ConfigIssue(
            key=f"${{{absent}}}",
            what=f"{key or 'A setting'} takes its value from this key, and there is no such key.",
            fix=f"Did you mean ${{{near[0]}}}?"
            if near
            else "Name an existing key; --cfg job prints them all.",
        )
    refused = text.startswith("Error merging override") and expected_kind(key or "") is not None
    if refused or any(phrase in text for phrase in _WRONG_TYPE):
        return _wrong_type(text, key)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    options = _first_match(text, r"(?s)Available options in '[^']*':\s*(.*?)\n\S")
    return ConfigIssue(
        key=key or "configuration",
        what=first,
        fix=f"Options: {', '.join(options.split())}."
        if options
        else "Correct the setting; --help lists the groups.",
    )


def _wrong_type(text: str, key: str | None) -> ConfigIssue:
    value: Any = _first_match(
        text, r"merging override \+*[\w.]+=(.*)", r"Value '([^']*)'", r"value '([^']*)'"
    )
    kind = expected_kind(_first_match(text, r"full_key: ([\w.]+)") or key or "")
    return ConfigIssue(
        key=key or "configuration",
        value=NO_VALUE if value is None else None if value == "None" else value,
        what=f"The value has the wrong type; expected {kind or 'another'}.",
        fix=f"{_example(key, kind)}; marsrl_verl/config/schema.py documents every key.",
    )


def _example(key: str | None, kind: str | None) -> str:
    if key and kind and kind.startswith("a list"):
        return f"Write '{key}=[a,b]'"
    if key and kind and kind.startswith("the keys"):
        return f"Leave {key} out and set a key below it"
    return "Leave it out, or give a value of that type"


def expected_kind(key: str) -> str | None:
    """What a key of the `marsrl` node takes, in words; None for any other key."""
    first, *parts = key.split(".")
    if first != "marsrl":
        return None
    kind: Any = MarsRLConfig
    for part in parts:
        if dataclasses.is_dataclass(kind):
            kind = typing.get_type_hints(kind).get(part)
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        else:
            return None
    return _in_words(kind)


def _in_words(kind: Any) -> str | None:
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return f"the keys {', '.join(names)} below it"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        words = [_in_words(one) for one in arguments if one is not type(None)]
        return f"{words[0]} or null"
    if origin is list:
        return f"a list (of {_in_words(arguments[0]) or 'values'})"
    if origin is dict:
        return f"a dictionary (each value {_in_words(arguments[1]) or 'anything'})"
    return _KINDS.get(kind)


def _whole_text(error: BaseException) -> str:
    """The messages of an exception and its causes; Hydra wraps OmegaConf's, which names the key."""
    parts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        parts.append(str(current))
        current = current.__cause__ or current.__context__
    return "\n".join(parts)


def _first_match(text: str, *patterns: str) -> str | None:
    for pattern in patterns:
        found = re.search(pattern, text)
        if found and found.group(1):
            return found.group(1)
    return None
