"""Which steps of a response are hidden: one of each kind, drawn at random."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marsrl_verl.core.reasoning_steps import Steps

INFLUENCE, SURPRISE, OTHER = "influence", "surprise", "other"
KINDS = (INFLUENCE, SURPRISE, OTHER)
"""Steps in the top share by FCI, those in the top share by mean -log p and not among them, the others."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A step to hide. What follows it is sampled anew."""

    kind: str
    step: int
    hidden: tuple[int, int]
    """First and one past the last hidden token of the response. The token with the line break that ends the
    step stays, and does not see the others either: what follows is sampled from its place."""
    kept: int
    """Tokens of the response up to the end of the step."""
    first_half: bool
    """Whether the step's middle lies in the first half of the response's tokens."""


def mean_surprise(steps: Steps, log_probs: Sequence[float]) -> list[float]:
    """The mean -log p of the tokens of each step.

    Args:
        steps: of a response of T tokens.
        log_probs: T log-probabilities.
    """
    return [
        -math.fsum(log_probs[steps.start(step) : end]) / (end - steps.start(step))
        for step, end in enumerate(steps.ends)
    ]


def eligible_steps(steps: Steps, delta: int) -> list[int]:
    """Steps that can be hidden, by position: thinking steps but for the first one, with `delta` steps or more
    after them (later ones have no influence that could be measured) and a token beside the one that stays."""
    last = min(steps.thinking, len(steps) - delta)
    return [step for step in range(1, last) if steps.ends[step] - steps.start(step) > 1]


def steps_by_kind(
    eligible: Sequence[int], influence: Sequence[float], surprise: Sequence[float], top_frac: float
) -> dict[str, list[int]]:
    """The eligible steps of each kind, by position; a kind may have none.

    Args:
        eligible: numbers of steps.
        influence: FCI of every step of the response.
        surprise: mean -log p of every step.
        top_frac: share of the eligible steps, rounded up, that is on top; of equal steps the earlier ones.
    """
    count = math.ceil(round(top_frac * len(eligible), 9))  # 0.07 * 100 is a little more than 7
    top = {
        kind: set(sorted(eligible, key=lambda step: (-values[step], step))[:count])
        for kind, values in ((INFLUENCE, influence), (SURPRISE, surprise))
    }
    return {
        INFLUENCE: sorted(top[INFLUENCE]),
        SURPRISE: sorted(top[SURPRISE] - top[INFLUENCE]),
        OTHER: [step for step in eligible if step not in top[INFLUENCE] | top[SURPRISE]],
    }


def draw_cuts(steps: Steps, by_kind: Mapping[str, Sequence[int]], rng: np.random.Generator) -> list[Cut]:
    """One cut of each kind; none where a kind has no step."""
    if not all(by_kind[kind] for kind in KINDS):
        return []
    return [_cut(steps, kind, by_kind[kind][int(rng.integers(len(by_kind[kind])))]) for kind in KINDS]


def _cut(steps: Steps, kind: str, step: int) -> Cut:
    start, end = steps.start(step), steps.ends[step]
    return Cut(kind, step, (start, end - 1), end, first_half=start + end <= steps.ends[-1])
