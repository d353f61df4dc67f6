"""Verdicts on a comparison's paired runs: better, worse, equivalent, or not decided with this power.

A suite names its primary outcomes before it runs, and which methods are judged against which. Their runs are
paired by seeds. p is that of the sign-flip test, made valid for all primary outcomes of the suite together by
Holm's method (Holm 1979); equivalence is judged by two one-sided tests (Schuirmann 1987).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, product
from statistics import stdev

import numpy as np

from marsrl_verl.compare.statistics import CONFIDENCE, MAX_FLIPPED, least_p, sign_flip_p, t_interval
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.evaluation.estimators import Estimate, student_quantile
from marsrl_verl.settings.choices import Choice

RESAMPLES = 4000
POWER = 0.8
_FLIPS = 20_000
_MAX_SIMULATED, _SIMULATED, _BISECTIONS = 12, 2000, 14
"""Seeds up to which the power of the exact test is simulated, with how many draws, and how finely."""


class Verdict(Choice):
    """Verdict on a difference."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    """Smaller than the margin, either way."""
    UNDECIDED = "not decided"


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between two methods on a primary outcome."""

    name: str
    """Names of the two methods."""
    metric: str
    values: tuple[float, ...]
    """Difference for each seed that both have; above 0 the first is better."""
    interval: Estimate
    """Mean and t interval."""
    bootstrap: tuple[float, float] | None
    """The studentised bootstrap's interval of the mean; None: too few seeds for one."""
    p: float | None
    """Two-sided p value of this difference alone; None: no seed has both."""
    adjusted_p: float | None = None
    """Holm's p value, for all of the suite's differences together."""
    verdict: Verdict = Verdict.UNDECIDED
    detectable: float | None = None
    """The difference that so many seeds with this spread show with 80 % power, tested at Holm's first level;
    None: no difference would, whatever its size."""
    seeds_needed: int = 0
    """The fewest seeds with which any difference could be shown."""


def judge(values: dict[tuple[str, str], Sequence[float]], margin: float) -> list[Difference]:
    """Differences with their verdicts, for all primary outcomes together, tested at one level: `values` are
    the differences of each seed by (name, metric), those smaller than `margin` are equivalence."""
    found = [_measured(name, metric, one) for (name, metric), one in values.items()]
    known = [one.p for one in found if one.p is not None]
    adjusted = iter(holm(known))
    level = 1 - CONFIDENCE
    needed = seeds_to_decide(len(known), level)
    judged = []
    for one in found:
        p = None if one.p is None else next(adjusted)
        verdict = _verdict(one, p, margin, level)
        shown = _detectable(one.values, level / len(known)) if len(one.values) >= needed else None
        judged.append(replace(one, adjusted_p=p, verdict=verdict, detectable=shown, seeds_needed=needed))
    return judged


def seeds_to_decide(outcomes: int, level: float = 0.05) -> int:
    """The fewest seeds with which the exact test can find anything in one of so many outcomes: its smallest p
    times their number is below the level."""
    return next(n for n in count(1) if least_p(n) * max(1, outcomes) < level)


def _detectable(values: Sequence[float], level: float) -> float | None:
    if len(values) < 2:
        return None
    if len(values) > _MAX_SIMULATED:
        return detectable_difference(stdev(values), len(values), 1 - level)
    return stdev(values) * _detectable_by_flips(len(values), level)


@cache
def _detectable_by_flips(seeds: int, level: float) -> float:
    """The mean difference, in standard deviations, that the exact test finds at this level with `POWER`: of
    normal differences, by simulation. With few seeds it is larger than the t test's: p has few values."""
    noise = derive_generator(0, "power", seeds).normal(size=(_SIMULATED, seeds))
    # One of two opposite assignments of signs is enough; the first is that of the data.
    signs = np.array([(1.0, *one) for one in product((1.0, -1.0), repeat=seeds - 1)])
    low, high = 0.0, 10.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        drawn = noise + middle
        sums = np.abs(drawn @ signs.T)
        p = (sums >= sums[:, :1] * (1 - 1e-9)).mean(axis=1)
        found = float(np.mean((p < level) & (drawn.sum(axis=1) > 0)))
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high


def _measured(name: str, metric: str, values: Sequence[float]) -> Difference:
    p = _p(values) if values else None
    return Difference(name, metric, tuple(values), t_interval(values), bootstrap_interval(values), p)


def _p(values: Sequence[float]) -> float:
    """Returns the p value of the exact test or, with more seeds, of `_FLIPS` random assignments of signs."""
    if len(values) <= MAX_FLIPPED:
        return sign_flip_p(values)
    found = np.asarray(values, dtype=float)
    signs = derive_generator(0, "sign flips", len(values)).choice((-1.0, 1.0), (_FLIPS, len(values)))
    beyond = np.abs(signs @ found) >= abs(found.sum()) * (1 - 1e-9) - 1e-12
    return float((1 + beyond.sum()) / (1 + _FLIPS))


def _verdict(one: Difference, p: float | None, margin: float, level: float) -> Verdict:
    mean = one.interval.mean
    if mean is None:
        return Verdict.UNDECIDED
    if p is not None and p < level:
        return Verdict.BETTER if mean > 0 else Verdict.WORSE
    within = t_interval(one.values, 1 - 2 * level)
    if within.low is not None and within.high is not None and -margin < within.low <= within.high < margin:
        return Verdict.EQUIVALENT
    return Verdict.UNDECIDED


def holm(values: Sequence[float]) -> list[float]:
    """Adjusted p in the order given: at a level, those below it are significant together (Holm 1979)."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        found[place] = largest
    return found


def bootstrap_interval(values: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float] | None:
    """The studentised bootstrap's interval of the mean (Efron & Tibshirani 1993, ch. 12.5), its seed fixed.
    None: all values are equal, or there are fewer than 3.

    Resamples in which all values are equal have no spread to divide by; they are drawn again in effect, since
    quantiles are taken of the others.
    """
    seeds = len(values)
    found = np.asarray(values, dtype=float)
    spread = float(found.std(ddof=1)) if seeds >= 3 else 0.0
    if spread <= 1e-12 * float(np.abs(found).max(initial=0.0)):
        return None
    rng = derive_generator(0, "bootstrap", seeds)
    drawn = found[rng.integers(seeds, size=(resamples, seeds))]
    spreads = drawn.std(axis=1, ddof=1)
    usable = spreads > spread * 1e-9
    ratios = (drawn.mean(axis=1)[usable] - found.mean()) / (spreads[usable] / math.sqrt(seeds))
    low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    error = spread / math.sqrt(seeds)
    mean = float(found.mean())
    return mean - float(high) * error, mean - float(low) * error


def detectable_difference(spread: float, seeds: int, confidence: float = CONFIDENCE) -> float:
    """The mean difference that a paired t test of so many seeds, at least 2, finds with `POWER`, given the
    standard deviation of the differences."""
    freedom = seeds - 1
    # One-sided quantile of the power: the two-sided one of 2 power - 1.
    quantiles = student_quantile(confidence, freedom) + student_quantile(2 * POWER - 1, freedom)
    return quantiles * spread / math.sqrt(seeds)
