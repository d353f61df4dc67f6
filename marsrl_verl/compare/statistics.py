"""Means over seeds, and differences between methods that were trained with several seeds each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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


def paired_difference(
    first: Mapping[int, float | None], second: Mapping[int, float | None], confidence: float = 0.95
) -> Estimate:
    """`second - first` by seed: the mean over the seeds that both have, with Student's t interval. Runs of
    one seed see the same problems in the same order; what that has in common is not in the interval.

    It leaves out 0 for many differences whose two sides have intervals that overlap.
    """
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    return t_interval((b - a for a, b in pairs if a is not None and b is not None), confidence)


MOST_DIVISIONS = 200_000
"""More are not looked through; two groups of ten have 184,756."""


def divisions(first: int, second: int) -> int:
    """In how many ways so many values can be divided into two groups of these sizes."""
    return math.comb(first + second, first)


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """p of the exact permutation test, two-sided: the share of all divisions of the values into two groups
    of these sizes whose means differ at least as much. Seeds are not paired. Groups of one size never have
    less than 2 / `divisions`: three seeds each 0.10.

    Raises:
        ValueError: a group is empty, or there are more than `MOST_DIVISIONS`.
    """
    if not first or not second:
        raise ValueError(f"expected two groups with a value each, found {len(first)} and {len(second)}")
    if divisions(len(first), len(second)) > MOST_DIVISIONS:
        raise ValueError(
            f"groups of {len(first)} and {len(second)} values can be divided in more than {MOST_DIVISIONS:,} "
            "ways; use the t interval of `paired_difference`"
        )
    values, total = [*first, *second], math.fsum([*first, *second])

    def gap(part: Sequence[float]) -> float:
        inside = math.fsum(part)
        return abs(inside / len(first) - (total - inside) / len(second))

    # Equal gaps may differ in their last digits.
    least = gap(first) * (1 - 1e-9) - 1e-12
    gaps = [gap(part) for part in itertools.combinations(values, len(first))]
    return sum(one >= least for one in gaps) / len(gaps)
