"""Mean and interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean, stdev

from marsrl_verl.evaluation.estimators import Estimate, student_quantile


def t_quantile(confidence: float, freedom: int) -> float:
    """The two-sided Student quantile: closed forms for 1 and 2 degrees of freedom, where the expansion of
    `student_quantile` is poor, that expansion from 3 on (within 0.2 % at 95 %)."""
    if not 0 < confidence < 1 or freedom < 1:
        raise ValueError(
            f"expected a confidence between 0 and 1 and 1 degree of freedom or more, found {confidence} and "
            f"{freedom}"
        )
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    return student_quantile(confidence, freedom)


def t_interval(values: Iterable[float | None], confidence: float = 0.95) -> Estimate:
    """Mean with Student's t interval, mean ± t·s/√n; n counts the values that are not None.

    One value gives a mean without an interval. The interval of a proportion is not cut at 0 and 1: with few
    seeds it may reach beyond.
    """
    found = [value for value in values if value is not None]
    if not found:
        return Estimate(None, None, None, 0)
    mean = fmean(found)
    if len(found) == 1:
        return Estimate(mean, None, None, 1)
    half = t_quantile(confidence, len(found) - 1) * stdev(found) / math.sqrt(len(found))
    return Estimate(mean, mean - half, mean + half, len(found))
