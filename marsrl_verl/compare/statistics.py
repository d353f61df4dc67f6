"""Mean and interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean, stdev

from marsrl_verl.evaluation.estimators import Estimate, student_quantile


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
    half = student_quantile(confidence, len(found) - 1) * stdev(found) / math.sqrt(len(found))
    return Estimate(mean, mean - half, mean + half, len(found))
