"""Proportions and means with confidence intervals, and differences between two evaluations.

Every reported figure is a mean of observations from no (0) to yes (1), or of other numbers, each belonging
to a problem. Observations of one problem (repeats, rounds) are not independent, so intervals are clustered by
problem.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

FEW = 30
"""A rate of fewer observations is shown with their number and is never called better or worse
(`MetricInfo.judged`)."""

GREEDY_SUFFIX = "_greedy"
"""Ends the names of what was measured at temperature 0."""


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A metric's name for readers, and which direction is better."""

    label: str
    meaning: str
    higher_is_better: bool = True
    follows_errors: bool = False
    """If true, it depends on how many and which errors there are to find and repair. Two models' figures are
    then of different inputs, and their difference says little about the role."""

    def judged(self, *cases: int | None) -> bool:
        """True if a difference between figures of this metric may be called better or worse.

        Args:
            cases: number of observations behind each figure; one that is unknown (None) may be small.
        """
        return not self.follows_errors and all(count is not None and count >= FEW for count in cases)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its confidence interval; all None when there was nothing to observe (n = 0). The mean of
    a number over a single problem has no interval."""

    mean: float | None
    low: float | None
    high: float | None
    n: int

    def to_json(self) -> dict[str, float | int | None]:
        """`{mean, low, high, n}`."""
        return asdict(self)

    @property
    def few(self) -> bool:
        """True if there are observations, but too few for a verdict."""
        return 0 < self.n < FEW

    @property
    def sign(self) -> int:
        """The sign of a difference: 1 or -1 where its interval lies above or below 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True, slots=True)
class Observations:
    """Observations and the problem that each belongs to; two tuples of one length."""

    outcomes: tuple[float, ...]
    """Yes and no (bool), or numbers between 0 and 1, such as an F1."""
    problems: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.outcomes) != len(self.problems):
            raise ValueError(
                f"outcomes and problems must have one length, found {len(self.outcomes)} and "
                f"{len(self.problems)}"
            )

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, str]]) -> Observations:
        """Builds them from (outcome, problem id) pairs."""
        items = list(pairs)
        outcomes = (one if isinstance(one, float) else bool(one) for one, _ in items)
        return cls(tuple(outcomes), tuple(problem for _, problem in items))

    def among(self, problems: Collection[str]) -> Observations:
        """Those of some problems."""
        known = zip(self.outcomes, self.problems, strict=True)
        return Observations.of(pair for pair in known if pair[1] in problems)

    def pairs(self) -> list[tuple[float, str]]:
        """(number, problem id) of every observation."""
        return [(float(one), problem) for one, problem in zip(self.outcomes, self.problems, strict=True)]

    @property
    def n(self) -> int:
        """Number of observations."""
        return len(self.outcomes)

    @property
    def mean(self) -> float | None:
        """Share of yes, or mean of the numbers; None without observations."""
        return sum(self.outcomes) / self.n if self.n else None

    @property
    def yes_or_no(self) -> bool:
        """True if every outcome is 0 or 1."""
        return set(self.outcomes) <= {0, 1}


NOT_OBSERVED = Observations((), ())
"""Observations of a pass that did not take place."""


def normal_quantile(confidence: float) -> float:
    """The two-sided standard normal quantile, 1.96 for 0.95."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, found {confidence}")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def student_quantile(confidence: float, freedom: int) -> float:
    """The two-sided Student quantile: closed forms for 1 and 2 degrees of freedom, from 3 on the expansion in
    1/freedom (Abramowitz & Stegun 26.7.5), within 0.2 % at 95 %."""
    if freedom < 1:
        raise ValueError(f"expected 1 degree of freedom or more, found {freedom}")
    z, v = normal_quantile(confidence), float(freedom)
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def wilson_interval(mean: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927); `n` may be an effective, fractional size."""
    if n <= 0:
        raise ValueError(f"a Wilson interval needs n > 0, found {n}")
    z = normal_quantile(confidence)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def estimate(observations: Observations, confidence: float = 0.95) -> Estimate:
    """Share of yes, or mean of numbers between 0 and 1, with its interval.

    One observation per problem: Wilson's interval. Several: Wilson's interval at the effective sample
    size p(1 - p) / v, where v is the variance of p linearised over problems (the sandwich estimator with
    its C/(C-1) correction), scaled for the Student quantile (Korn & Graubard 1998) with C - 1 degrees of
    freedom, C problems, or fewer where few of them tell all (`_freedom`). Of yes and no it never exceeds n;
    numbers in between vary less, so that it may. When all observations agree, v says nothing about their
    dependence, and the number of problems is taken.

    A Wilson interval keeps its coverage at shares near 0 and 1, where a bootstrap of the same data
    collapses to a point, and needs no random numbers.
    """
    mean = observations.mean
    if mean is None:
        return Estimate(None, None, None, 0)
    low, high = wilson_interval(mean, _effective_size(observations, mean, confidence), confidence)
    return Estimate(mean, low, high, observations.n)


def metric_label(metrics: Mapping[str, MetricInfo], name: str) -> str:
    """The name of a metric in tables and pictures: its label, or its own name where it has no entry."""
    base = name.removesuffix(GREEDY_SUFFIX)
    label = metrics[base].label if base in metrics else base
    return f"{label}, greedy" if name != base else label


def estimates(observations: Mapping[str, Observations], confidence: float = 0.95) -> dict[str, Estimate]:
    """Each metric's mean and interval."""
    return {name: estimate(items, confidence) for name, items in observations.items()}


def share_estimate(values: Mapping[str, float], most: int, confidence: float = 0.95) -> Estimate:
    """Mean of one number between 0 and 1 for each problem, with Wilson's interval at the effective sample
    size of `estimate`.

    Args:
        values: by problem.
        most: observations behind them, which the effective size never exceeds.
    """
    if not values:
        return Estimate(None, None, None, 0)
    pairs = [(value, problem) for problem, value in values.items()]
    mean = math.fsum(values.values()) / len(values)
    plain = set(values.values()) <= {0.0, 1.0}
    size = len(values) if plain else _clustered_size(pairs, mean, most, confidence)
    low, high = wilson_interval(mean, size, confidence)
    return Estimate(mean, low, high, len(values))


def mean_estimate(values: Iterable[tuple[float, str]], confidence: float = 0.95) -> Estimate:
    """The mean of (number, problem id) pairs with Student's interval, clustered by problem.

    The variance is the sandwich estimator of `estimate`, and so are the degrees of freedom.
    """
    items = list(values)
    if not items:
        return Estimate(None, None, None, 0)
    mean = math.fsum(value for value, _ in items) / len(items)
    problems = len({problem for _, problem in items})
    if problems == 1:
        return Estimate(mean, None, None, len(items))
    influence = _influence(items, mean)
    variance = _clustered_variance(influence)
    half = student_quantile(confidence, _freedom(influence)) * math.sqrt(variance) if variance > 0 else 0.0
    return Estimate(mean, mean - half, mean + half, len(items))


def _effective_size(observations: Observations, mean: float, confidence: float) -> float:
    n, problems = observations.n, len(set(observations.problems))
    if observations.yes_or_no and problems == n:
        return n
    most = n if observations.yes_or_no else math.inf
    return _clustered_size(observations.pairs(), mean, most, confidence)


def _clustered_size(
    values: Sequence[tuple[float, str]], mean: float, most: float, confidence: float
) -> float:
    """The size of a sample of independent observations whose mean would vary as much, at most `most`."""
    problems = len({problem for _, problem in values})
    if problems == 1 or mean in (0.0, 1.0):
        return problems
    influence = _influence(values, mean)
    variance = _clustered_variance(influence)
    if variance <= 0:  # all alike
        return most if math.isfinite(most) else len(values)
    shrink = (normal_quantile(confidence) / student_quantile(confidence, _freedom(influence))) ** 2
    return min(float(most), max(1.0, mean * (1 - mean) / variance * shrink))


def _influence(values: Sequence[tuple[float, str]], mean: float) -> dict[str, float]:
    """Each problem's summed residual over n, the number of values: what it contributes to the error of their
    mean."""
    sums: dict[str, float] = {}
    for value, problem in values:
        sums[problem] = sums.get(problem, 0.0) + (value - mean) / len(values)
    return sums


def _clustered_variance(influence: Mapping[str, float]) -> float:
    """Variance of a mean linearised over two or more problems (sandwich estimator)."""
    problems = len(influence)
    return problems / (problems - 1) * math.fsum(one * one for one in influence.values())


def _freedom(influence: Mapping[str, float]) -> int:
    """Degrees of freedom of the variance of two or more problems' contributions, at most their number less 1.

    Satterthwaite's 2 V^2 / Var(V) with the kurtosis k that they have: 2 C / (k - 1) of C problems. Where few
    of them tell all, such as the only ones ever solved, the variance is known little better than from these.
    """
    problems, squares = len(influence), math.fsum(one**2 for one in influence.values())
    kurtosis = problems * math.fsum((one**2 / squares) ** 2 for one in influence.values())
    wanted = 2 * problems / (kurtosis - 1) if kurtosis > 1 else math.inf
    return max(1, int(min(problems - 1, wanted)))


def difference(before: Observations, after: Observations, confidence: float = 0.95) -> Estimate:
    """`after - before` with an interval that uses the pairing of problems.

    Newcombe's hybrid score interval for paired proportions (Newcombe 1998, method 10): the distances of
    both means to their own interval's ends, combined with the correlation of the two means. Here the
    intervals are those of `estimate` and the correlation is that of the problems' contributions, so that
    repeats and problems that occur on one side only are allowed. `n` is the number of problems on both
    sides. All None when a side has no observation.
    """
    first, second = estimate(before, confidence), estimate(after, confidence)
    shared = len(set(before.problems) & set(after.problems))
    if first.mean is None or second.mean is None:
        return Estimate(None, None, None, 0)
    assert first.low is not None and first.high is not None
    assert second.low is not None and second.high is not None
    rho = _correlation(_influence(before.pairs(), first.mean), _influence(after.pairs(), second.mean))
    delta = second.mean - first.mean
    low = _combined(second.mean - second.low, first.high - first.mean, rho)
    high = _combined(second.high - second.mean, first.mean - first.low, rho)
    return Estimate(delta, max(-1.0, delta - low), min(1.0, delta + high), shared)


def _combined(a: float, b: float, rho: float) -> float:
    return math.sqrt(max(0.0, a * a + b * b - 2 * rho * a * b))


def _correlation(first: dict[str, float], second: dict[str, float]) -> float:
    """Correlation of two sets of per-problem contributions (their sums are 0); 0 where one is constant."""
    norm = math.sqrt(sum(x * x for x in first.values()) * sum(x * x for x in second.values()))
    product = sum(value * second.get(problem, 0.0) for problem, value in first.items())
    return max(-1.0, min(1.0, product / norm)) if norm > 0 else 0.0
