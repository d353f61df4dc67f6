"""Metrics of the user's own: functions of a step's scored groups (`marsrl.metrics`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from marsrl_verl.core.group import Group
from marsrl_verl.evaluation.training_metrics import counting, scored
from marsrl_verl.settings.rules import OwnFunction, RuleError

KEY = "marsrl.metrics"
_EXPECTED = "a number, or a mapping of names to numbers"


class StepMetric(Protocol):
    """A figure of the groups that completed in a step, of their trajectories with a reward; or several, by
    name."""

    def __call__(self, groups: Sequence[Group]) -> float | Mapping[str, float]:
        """See the class."""


class OwnMetrics:
    """The user's metrics of a run's steps, under `own/<name>`.

    Args:
        functions: by name.
    """

    def __init__(self, functions: Mapping[str, OwnFunction[StepMetric]]) -> None:
        self._functions = functions
        self._reported: set[str] = set()

    def measure(self, groups: Sequence[Group], *, trains: bool = True) -> tuple[dict[str, float], list[str]]:
        """The step's figures, and warnings: of each function the first error. What it does not say as a
        finite number is absent.

        Args:
            groups: those that completed.
            trains: see `training_metrics`.
        """
        found: dict[str, float] = {}
        warnings: list[str] = []
        shown = scored(groups)
        for name, function in self._functions.items():
            full = f"own/{name if trains else counting(name)}"
            try:
                found |= _figures(full, function, f"{KEY}.{name}", shown)
            except RuleError as error:
                if name not in self._reported:
                    warnings.append(f"warning: the metric {full} is missing. {error}")
                self._reported.add(name)
        return found, warnings


def _figures(
    name: str, function: OwnFunction[StepMetric], key: str, groups: Sequence[Group]
) -> dict[str, float]:
    value = function.call(key, groups)
    named = {name: value}
    if isinstance(value, Mapping):
        named = {f"{name}/{one}": each for one, each in value.items()}
    try:
        numbers = {one: float(each) for one, each in named.items()}
    except (TypeError, ValueError) as error:
        raise function.refuse(key, f"{type(value).__name__} {value!r:.60}", _EXPECTED) from error
    return {one: number for one, number in numbers.items() if math.isfinite(number)}
