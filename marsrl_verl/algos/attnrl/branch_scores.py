"""Branch points by a function of the user's: its view of a response, and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.core.reasoning_steps import Steps
from marsrl_verl.settings.rules import OwnFunction, offers

KEY = "marsrl.algo.criterion"
ENTROPIES, INFLUENCES = "entropies", "influence"
"""Needs that a function may declare (`settings.rules.needs`)."""


@dataclass(frozen=True, slots=True)
class ResponseView:
    """A first response, T tokens in S reasoning steps."""

    token_ids: Sequence[int]
    """(T,)"""
    texts: Sequence[str]
    """(T,) the text that each token adds."""
    steps: Steps
    """Ends of the steps, and the number of thinking ones."""
    log_probs: NDArray[np.floating[Any]]
    """(T,) of the tokens when they were sampled; the trainer's if it computed them."""
    rng: np.random.Generator
    """Generator for random choices, the same for the same response and seed."""
    asked: Mapping[str, NDArray[np.floating[Any]]] = field(default_factory=dict)
    """Arrays that the function needs, by name."""

    @property
    def step_texts(self) -> list[str]:
        """(S,) the text of each step."""
        ends = self.steps.ends
        return ["".join(self.texts[start:end]) for start, end in zip((0, *ends), ends, strict=False)]

    @property
    def entropies(self) -> NDArray[np.floating[Any]]:
        """(T,) entropies in nats of the distributions that the tokens were drawn from; for functions that
        need `entropies`."""
        return self._of(ENTROPIES)

    @property
    def influence(self) -> NDArray[np.floating[Any]]:
        """(S,) Forward Context Influence, 0 where it is not measured; for functions that need `influence`."""
        return self._of(INFLUENCES)

    def _of(self, name: str) -> NDArray[np.floating[Any]]:
        if name not in self.asked:
            raise LookupError(f"a function that reads {name} has to say so: @needs({name!r})")
        return self.asked[name]


@offers(ENTROPIES, INFLUENCES)
class BranchScores(Protocol):
    """Scores of a response's steps (S,) or tokens (T,): branches begin at the highest ones, ties by position;
    never at a score of -inf."""

    def __call__(self, response: ResponseView) -> Sequence[float]:
        """See the class."""


def branch_scores(rule: OwnFunction[BranchScores], response: ResponseView) -> tuple[float, ...]:
    """Returns the scores of a response.

    Raises:
        RuleError: the function raised, or its scores are not of steps or tokens.
    """
    found = rule.call(KEY, response)
    steps, tokens = len(response.steps), len(response.token_ids)
    expected = f"a number for each of the {steps} steps or of the {tokens} tokens of a response"
    try:
        scores = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise rule.refuse(KEY, f"{type(found).__name__} {found!r:.60}", expected) from error
    if scores.ndim != 1 or len(scores) not in (steps, tokens):
        raise rule.refuse(KEY, f"an array of shape {scores.shape}", expected)
    if np.isnan(scores).any():
        raise rule.refuse(KEY, "NaN among its scores", expected)
    return tuple(scores.tolist())
