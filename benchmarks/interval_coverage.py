"""Coverage of the intervals over problems, by simulated evaluations.

    python -m benchmarks.interval_coverage --trials 2000

A problem's chance of a right answer is drawn from a beta distribution around the true share, so that problems
differ from each other more (spread 0.5) or less (spread 4); each is answered so often. The figure is the
share of simulated evaluations whose nominal 95 % interval holds the truth.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from marsrl_verl.evaluation.at_k import by_problem
from marsrl_verl.evaluation.estimators import (
    Estimate,
    Observations,
    difference,
    estimate,
    mean_estimate,
    share_estimate,
)

Answers = NDArray[np.bool_]
"""Whether each answer is right: [problems, repeats]."""
GAIN = 0.1
"""Of the second of two evaluations, in share of right answers."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Simulated evaluations of one kind."""

    problems: int
    repeats: int
    share: float
    """Of right answers."""
    spread: float
    """The beta distribution's two parameters together."""


SETTINGS = [
    Setting(problems, repeats, share, spread)
    for problems in (30, 200)
    for repeats in (1, 8)
    for share, spread in ((0.5, 0.5), (0.5, 4.0), (0.9, 0.5), (0.05, 0.5))
]


def skills(setting: Setting, rng: np.random.Generator) -> NDArray[np.float64]:
    """Each problem's chance of a right answer."""
    first, second = setting.share * setting.spread, (1 - setting.share) * setting.spread
    return rng.beta(first, second, size=setting.problems)


def answered(chances: NDArray[np.float64], repeats: int, rng: np.random.Generator) -> Answers:
    """Answers with these chances."""
    return rng.random((len(chances), repeats)) < chances[:, None]


def observations(answers: Answers) -> Observations:
    """As an evaluation has them."""
    names = [str(problem) for problem in range(len(answers)) for _ in range(answers.shape[1])]
    return Observations(tuple(map(bool, answers.reshape(-1))), tuple(names))


def of_share(setting: Setting, rng: np.random.Generator) -> tuple[Estimate, float]:
    """`estimate` of right answers."""
    return estimate(observations(answered(skills(setting, rng), setting.repeats, rng))), setting.share


def of_pass_at_2(setting: Setting, rng: np.random.Generator) -> tuple[Estimate, float]:
    """`share_estimate` of pass@2, whose truth is 1 - E[(1 - p)^2]."""
    answers = answered(skills(setting, rng), setting.repeats, rng)
    counts = {str(problem): [bool(x) for x in one] for problem, one in enumerate(answers)}
    wrong = 1 - setting.share
    truth = 1 - wrong * (wrong * setting.spread + 1) / (setting.spread + 1)
    return share_estimate(by_problem(counts, 2)["pass_at_2"], answers.size), truth


def of_mean(setting: Setting, rng: np.random.Generator) -> tuple[Estimate, float]:
    """`mean_estimate` of tokens: right answers have 100, others 100 and what an exponential draw adds."""
    answers = answered(skills(setting, rng), setting.repeats, rng)
    tokens = np.where(answers, 100.0, 100.0 + rng.exponential(200.0, size=answers.shape))
    pairs = [(float(x), str(problem)) for problem, one in enumerate(tokens) for x in one]
    return mean_estimate(pairs), 100.0 + 200.0 * (1 - setting.share)


def of_difference(setting: Setting, rng: np.random.Generator) -> tuple[Estimate, float]:
    """`difference` of two evaluations of the same problems: the second solves with chance `GAIN` what the
    first would not, a truth of GAIN (1 - share)."""
    chances = skills(setting, rng)
    better = chances + GAIN * (1 - chances)
    before, after = (observations(answered(one, setting.repeats, rng)) for one in (chances, better))
    return difference(before, after), GAIN * (1 - setting.share)


FIGURES: dict[str, Callable[[Setting, np.random.Generator], tuple[Estimate, float]]] = {
    "estimate": of_share,
    "share_estimate": of_pass_at_2,
    "mean_estimate": of_mean,
    "difference": of_difference,
}


def coverage(name: str, setting: Setting, trials: int, seed: int = 1) -> float:
    """The share of simulated evaluations whose interval holds the truth."""
    rng, held = np.random.default_rng(seed), 0
    for _ in range(trials):
        found, truth = FIGURES[name](setting, rng)
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    return held / trials


def rows(trials: int) -> Iterator[list[str]]:
    """The table's lines."""
    for one in SETTINGS:
        usable = [name for name in FIGURES if name != "share_estimate" or one.repeats > 1]
        found = {name: f"{100 * coverage(name, one, trials):.1f}" for name in usable}
        spread = f"{one.share:g}, {one.spread:g}"
        yield [str(one.problems), str(one.repeats), spread, *(found.get(name, "–") for name in FIGURES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="simulated evaluations of each kind")
    trials = parser.parse_args().trials
    print(table(["problems", "answers", "share, spread", *FIGURES], list(rows(trials))))


if __name__ == "__main__":
    main()
