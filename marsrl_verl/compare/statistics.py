"""Means over seeds, and differences between methods that were trained with several seeds each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev

from marsrl_verl.evaluation.estimators import Estimate, student_quantile

CONFIDENCE = 0.95
"""Level of intervals; 1 less it is that of tests."""


def t_interval(values: Iterable[float | None], confidence: float = CONFIDENCE) -> Estimate:
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


def seed_differences(first: Mapping[int, float | None], second: Mapping[int, float | None]) -> list[float]:
    """`second - first` of each seed that has both. Runs of one seed see the same problems in the same order;
    what they have in common because of that cancels out, so that these differences can be clear where the
    intervals of both sides overlap."""
    pairs = [(first[seed], second[seed]) for seed in sorted(first.keys() & second.keys())]
    return [b - a for a, b in pairs if a is not None and b is not None]


MAX_FLIPPED = 16
"""Most differences whose assignments of signs can all be gone through; with more use the t interval."""


def least_p(count: int) -> float:
    """The smallest p that `sign_flip_p` can give for so many differences: three seeds 0.25, six 0.03."""
    return 2.0 ** (1 - count)


def sign_flip_p(differences: Sequence[float]) -> float:
    """p of the exact sign-flip test, the permutation test of paired values, two-sided: the share of all
    assignments of signs whose mean is at least as far from 0. Flipping a sign exchanges the two runs of one
    seed, so nothing is exchanged between seeds.

    Raises:
        ValueError: there is no difference, or there are more than `MAX_FLIPPED`.
    """
    if not 1 <= len(differences) <= MAX_FLIPPED:
        raise ValueError(
            f"expected 1 to {MAX_FLIPPED} differences, found {len(differences)}; with more use `t_interval`"
        )
    # Equal sums may differ in their last digits.
    least = abs(math.fsum(differences)) * (1 - 1e-9) - 1e-12
    sizes = [(abs(one), -abs(one)) for one in differences]
    sums = [abs(math.fsum(signed)) for signed in itertools.product(*sizes)]
    return sum(one >= least for one in sums) / len(sums)
