"""AttnRL's adaptive sampling: choice of the problems and trees to expand, and the number of problems.

arXiv 2509.26628, §3.3: an attention-based filter (eq. 8), a number of trees by difficulty (eq. 9), and a
number of problems by the share of samples that are worth training (eq. 10). Paper and released code
differ in each; both can be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marsrl_verl.settings.choices import Choice


class FilterRule(Choice):
    """Rule for the problems that are expanded. The first responses of the others are still trained on if
    their rewards differ; a problem whose first responses are all right is rejected.

    The paper's text gives one reason to leave a problem out, that it is "too easy" for a wrong response to be
    sampled, and its code judges such problems only; read literally, its eq. 8 judges all of them. The
    published growth of the batch (from 75 to 175 problems) fits the code, so that is the default.
    """

    NONE = "none"
    RELEASED = "released"
    PAPER = "paper"


class FilterMean(Choice):
    """Mean that a problem's influence is compared with (`Config.filter_mean`), current problems included."""

    CUMULATIVE = "cumulative"
    EMA = "ema"


class ExpansionRounding(Choice):
    """Rounding of exp(-z) * G to a number of trees (`Config.expansion`)."""

    ROUND = "round"
    CEIL = "ceil"
    ALL = "all"


class TreeChoice(Choice):
    """Rule for the first responses that are expanded if not all are."""

    RANDOM = "random"
    """Drawn at random (the paper names no rule)."""
    MINORITY = "minority"
    """All of the rarer kind, right or wrong, then others at random; if all are right, the first ones
    (released code)."""


@dataclass(slots=True)
class RunningMean:
    """The mean that the filter compares with."""

    kind: FilterMean
    decay: float
    """Weight of the past in an EMA."""
    value: float | None = None
    count: int = 0

    def update(self, values: Sequence[float]) -> None:
        """Adds the values of one step's problems, whose order does not matter."""
        if not values:
            return
        mean = math.fsum(values) / len(values)
        self.count += len(values)
        if self.value is None:
            self.value = mean
        elif self.kind is FilterMean.EMA:
            self.value = self.decay * self.value + (1 - self.decay) * mean
        else:
            self.value += (mean - self.value) * len(values) / self.count

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"value": self.value, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with a saved mean."""
        self.value, self.count = state["value"], state["count"]


@dataclass(frozen=True, slots=True)
class ProblemStatistics:
    """Statistics of the first responses to a problem."""

    correct: int
    responses: int
    influence: float
    """(1/G) sum_i (1/K_i) sum_k y_ik: mean influence of a step, over the responses."""
    without_influence: int = 0
    """Responses without influence in any step: they are too short for the distance from which it counts."""

    @property
    def accuracy(self) -> float:
        """z: the share of right responses."""
        return self.correct / self.responses

    @property
    def all_correct(self) -> bool:
        return self.correct == self.responses


def in_filter(statistics: ProblemStatistics, rule: FilterRule) -> bool:
    """True if the rule judges this problem, so that its influence enters the running mean."""
    return rule is FilterRule.PAPER or (rule is FilterRule.RELEASED and statistics.all_correct)


def passes_filter(statistics: ProblemStatistics, rule: FilterRule, mean: float | None) -> bool:
    """True if the problem is expanded. `mean` already includes the current step's problems."""
    if not in_filter(statistics, rule) or mean is None:
        return True
    # A running mean of equal numbers may differ from them in its last digits.
    if math.isclose(statistics.influence, mean, rel_tol=1e-9):
        return rule is FilterRule.PAPER
    return statistics.influence > mean


def trees_to_expand(statistics: ProblemStatistics, rounding: ExpansionRounding) -> int:
    """Returns exp(-z) * G, at least 1 and at most G (eq. 9): hard problems get more trees."""
    if rounding is ExpansionRounding.ALL:
        return statistics.responses
    exact = math.exp(-statistics.accuracy) * statistics.responses
    # Halves go up: Python's own rounding would send 2.5 and 3.5 to different sides.
    number = math.floor(exact + 0.5) if rounding is ExpansionRounding.ROUND else math.ceil(exact)
    return min(max(number, 1), statistics.responses)


def choose_trees(
    rewards_right: Sequence[bool], number: int, choice: TreeChoice, rng: np.random.Generator
) -> list[int]:
    """Returns the responses to expand, by their numbers, in ascending order.

    Args:
        rewards_right: whether each response is right.
        number: responses to expand.
        choice: rule by which they are chosen.
        rng: source of random numbers.
    """
    everyone = list(range(len(rewards_right)))
    if number >= len(everyone):
        return everyone
    if choice is TreeChoice.RANDOM:
        return sorted(rng.choice(len(everyone), size=number, replace=False).tolist())
    right = [at for at in everyone if rewards_right[at]]
    wrong = [at for at in everyone if not rewards_right[at]]
    if not right or not wrong:
        return everyone[:number]
    rare, common = (wrong, right) if len(right) >= len(wrong) else (right, wrong)
    if len(rare) >= number:
        return sorted(rng.permutation(rare)[:number].tolist())
    others = rng.choice(common, size=number - len(rare), replace=False).tolist()
    return sorted([*rare, *others])


@dataclass(slots=True)
class BatchController:
    """Number of problems of a step, adapted so that about a target number of samples is worth training.

    B_m = round(lambda B_{m-1} + (1 - lambda) B' / B'' B_{m-1}) (eq. 10), with B' the target and B'' the
    samples trained last; kept between `least` and `most`.
    """

    target_samples: int
    """B'."""
    problems: float
    """B_m, unrounded, so that small changes add up."""
    least: int
    most: int
    smoothing: float
    """lambda."""

    def number(self) -> int:
        """Returns the number of problems of the next step."""
        return min(max(math.floor(self.problems + 0.5), self.least), self.most)

    def observe(self, trained_samples: float) -> None:
        """Takes in the number of samples of a step's problems that were trained."""
        # Without any sample the number grows towards its limit, and nothing is divided by zero.
        ratio = self.target_samples / trained_samples if trained_samples else math.inf
        target = min(ratio * self.problems, float(self.most))
        smoothed = self.smoothing * self.problems + (1 - self.smoothing) * target
        self.problems = min(max(smoothed, float(self.least)), float(self.most))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"problems": self.problems}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues with a saved number, inside this run's limits."""
        self.problems = min(max(float(state["problems"]), float(self.least)), float(self.most))
