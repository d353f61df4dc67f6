"""Combinations of settings that are rejected: `config/tables/refused.yaml` has them, and says how."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.upstream import changed, changed_beyond_presets
from marsrl_verl.config.tables import read_table
from marsrl_verl.settings.issues import ConfigIssue

RULES: dict[str, list[dict[str, Any]]] = read_table("refused")
"""The rules of each part."""
PLACEHOLDER = re.compile(r"\{([a-z][\w.]*)\}")


def refuses(part: str) -> Callable[[Context], Iterator[ConfigIssue]]:
    """The check of one part of the table."""

    def check(ctx: Context) -> Iterator[ConfigIssue]:
        for rule in RULES[part]:
            for key, value in rule["refuse"].items():
                conditions = {key: value, **rule.get("if", {})}
                if all(_holds(ctx, other, wanted) for other, wanted in conditions.items()):
                    yield ctx.issue(key, _filled(ctx, key, rule["what"]), _filled(ctx, key, rule["fix"]))

    check.__name__ = part
    return check


def _filled(ctx: Context, key: str, text: str) -> str:
    return PLACEHOLDER.sub(lambda name: key if name[1] == "key" else str(_value(ctx, name[1])), text)


def _value(ctx: Context, key: str) -> Any:
    """The value of a setting, one of ours as it is declared; `run.…` is what the context says of the run."""
    node, *path = key.split(".")
    if node in ("marsrl", "run"):
        return reduce(getattr, path, ctx.settings if node == "marsrl" else ctx)
    return ctx.get(key)


def _holds(ctx: Context, key: str, wanted: Any) -> bool:
    """True if a setting has a value as a rule describes it."""
    if isinstance(wanted, list):
        return any(_holds(ctx, key, one) for one in wanted)
    if isinstance(wanted, dict):
        return all(_passes(ctx, key, test, operand) for test, operand in wanted.items())
    return bool(_value(ctx, key) == wanted)


def _passes(ctx: Context, key: str, test: str, operand: Any) -> bool:
    if test == "not":
        return not _holds(ctx, key, operand)
    if test == "changed":
        return bool(changed(ctx, key)) is operand
    if test == "beyond_presets":
        return changed_beyond_presets(ctx, key) is operand
    value = _value(ctx, key)
    if test == "set":
        return bool(value) is operand
    if test == "has":
        return operand in (value or ())
    other = _value(ctx, operand) if isinstance(operand, str) else operand
    if test == "differs":
        return bool(value != other)
    assert test in ("above", "below"), test
    if value is None or other is None:
        return False
    return bool(value > other if test == "above" else value < other)
