"""Readable problems for what Hydra and OmegaConf raise while a configuration is composed."""

from __future__ import annotations

import re

import yaml

from marsrl_verl.config.command_line import unknown_key_issue
from marsrl_verl.config.reference import all_keys, find_unknown
from marsrl_verl.settings.issues import ConfigError, ConfigIssue, did_you_mean


def explain(error: Exception, groups: tuple[str, ...]) -> ConfigIssue:
    """A readable problem for an exception of Hydra or OmegaConf."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConfigError):
            return cause.problems[0]
        cause = cause.__cause__ or cause.__context__
    text = _full_text(error)
    key = _first_match(
        text,
        r"interpolation '\$\{([\w.]+)\}'",
        r"full_key: ([\w.\[\]]+)",
        r"[Oo]verrid(?:e|ing) '?([\w.]+)",
        r"config '?([\w./]+)",
    )
    if key is not None and (unknown := find_unknown(key)) is not None:
        return unknown_key_issue(unknown.key, unknown.siblings, groups)
    if isinstance(error, yaml.YAMLError):
        what = f"A configuration file cannot be read: {error}"
        return ConfigIssue("YAML", what, "Put the YAML right there.")
    if absent := _first_match(text, r"Interpolation key '([^']+)' not found"):
        near = did_you_mean(absent, all_keys())
        what = f"{key or 'A setting'} takes its value from this key, and there is no such key."
        fix = f"Did you mean ${{{near[0]}}}?" if near else "Name an existing key; --cfg job prints them all."
        return ConfigIssue(f"${{{absent}}}", what, fix)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    options = _first_match(text, r"(?s)Available options in '[^']*':\s*(.*?)\n\S")
    fix = (
        f"Options: {', '.join(options.split())}."
        if options
        else "Correct the setting; --help lists the groups."
    )
    return ConfigIssue(key or "configuration", first, fix)


def _full_text(error: BaseException) -> str:
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
