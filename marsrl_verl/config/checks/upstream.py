"""Checks of verl's own settings: what it would check late or not at all, and what the trainer does not use.

A setting that has no effect is rejected when it was changed (against verl's default, or against the
value that our root configuration gives it), never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from pydantic import ConfigDict, Field, create_model

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.node import leaves
from marsrl_verl.config.reference import ABSENT, at, default_of, kind_problems
from marsrl_verl.config.tables import read_table
from marsrl_verl.config.verl_keys import FIXED_KEYS, INERT_KEYS
from marsrl_verl.settings.declaration import Settings, limits
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.reading import find_issues

_OURS: dict[str, Any] = read_table("own_values")
_TYPES = {"int": int, "float": float, "int or null": int | None, "float or null": float | None}


class _VerlSettings(Settings):
    model_config = ConfigDict(strict=True)


def _declared(values: dict[str, Any]) -> Any:
    """One line of `verl_values.yaml` as a pydantic field."""
    if "choices" in values:
        choice = Enum("Choice", {name: name for name in values["choices"]})  # type: ignore[misc]
        return choice, Field(..., strict=False, json_schema_extra={"why": values.get("why", "")})
    return _TYPES[values["type"]], limits(
        ..., **{name: one for name, one in values.items() if name != "type"}
    )


_DECLARED = {key: _declared(values) for key, values in read_table("verl_values").items()}
_MODEL = create_model("VerlValues", __base__=_VerlSettings, **_DECLARED)


def check_types(ctx: Context) -> list[ConfigIssue]:
    """Values of verl's keys against the kind that verl expects."""
    return kind_problems(ctx.raw)


def check_values(ctx: Context) -> Iterator[ConfigIssue]:
    """Values of verl's keys against what is declared here."""
    yield from find_issues(_MODEL, {key: ctx.get(key) for key in _DECLARED}, "")


def check_inert(ctx: Context) -> Iterator[ConfigIssue]:
    """Keys without effect that were changed."""
    for inert in INERT_KEYS:
        what = f"It was changed, but the trainer does not use it. {inert.reason}"
        for key, value in changed(ctx, inert.key):
            if not any(key == used or key.startswith(f"{used}.") for used in inert.but):
                yield ConfigIssue(key, what, inert.instead, value)


def check_fixed(ctx: Context) -> Iterator[ConfigIssue]:
    """Keys that the trainer would honour with a wrong result."""
    for fixed in FIXED_KEYS:
        for key, value in changed(ctx, fixed.key):
            yield ConfigIssue(key, fixed.reason, fixed.instead, value)


def changed(ctx: Context, key: str) -> list[tuple[str, Any]]:
    """Settings at a key, or below it, that differ from verl's default and from ours."""
    return [
        (leaf, value)
        for leaf, value in leaves(at(ctx.raw, key), key)
        if value is not ABSENT and not _same(value, _OURS.get(leaf, default_of(leaf)))
    ]


def changed_beyond_presets(ctx: Context, key: str) -> bool:
    """True for a changed setting that has another value than the method's presets give it."""
    preset = ctx.settings.algo.preset_values.get(key)
    return bool(changed(ctx, key)) and (preset is None or ctx.get(key) != preset)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, (int, float)) and isinstance(expected, (int, float)):
        return float(value) == float(expected)
    return str(value) == str(expected)
