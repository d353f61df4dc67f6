"""Choice of the outputs of one stage that become inputs of the next (MarsRL, arXiv 2511.11373, §3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marsrl_verl.settings.choices import Choice
from marsrl_verl.settings.rules import OwnFunction

KEY = "marsrl.algo.selection"


class Strategy(Choice):
    """Order of the classes of candidates. The caller names the preferred class: for a Verifier the incorrect
    solutions, for a Corrector the errors that were found rightly."""

    RANDOM = "random"
    BALANCED = "balanced"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An eligible output of the preceding stage."""

    sample_id: str
    in_preferred_class: bool
    answer: str | None = None
    """The final answer of a solution; None: none could be read."""
    reward: float = 0.0
    text: str = ""
    """Its text without the thinking part."""


class Selects(Protocol):
    """Chooses the outputs of a stage that become inputs: at most `k` different ones of `candidates`, which
    come in the order of their ids."""

    def __call__(
        self, candidates: Sequence[Candidate], k: int, rng: np.random.Generator
    ) -> Sequence[Candidate]:
        """See the class."""


def choose(
    candidates: Sequence[Candidate],
    k: int,
    strategy: Strategy | OwnFunction[Selects] | str,
    rng: np.random.Generator,
    *,
    distinct_answers: bool = False,
) -> list[Candidate]:
    """Chooses `k` candidates without replacement, or all of them if there are fewer.

    With `distinct_answers` only one candidate of each answer, drawn uniformly, takes part; those without a
    readable answer count as one answer.

    Every set of `k` candidates is equally likely with `random`; with the other strategies every choice
    within a class. A class that is too small is filled up from the other. It makes no difference which
    inputs the candidates answer, nor in which order they are given: the result depends on the set of
    candidates and on `rng`.

    Raises:
        RuleError: a function of the user's raised, or made an invalid choice.

    Returns:
        The chosen candidates, for `balanced` and `adaptive` the preferred class first.
    """
    counts = Counter(candidate.sample_id for candidate in candidates)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"selection: candidates given twice: {twice}")
    if k < 0:
        raise ValueError(f"selection: cannot choose {k} candidates, expected 0 or more")
    ordered = sorted(candidates, key=lambda candidate: candidate.sample_id)
    if distinct_answers:
        ordered = _one_per_answer(ordered, rng)
    if isinstance(strategy, OwnFunction):
        return _chosen(strategy, ordered, k, rng)
    shuffled = [ordered[i] for i in rng.permutation(len(ordered))]
    if Strategy(strategy) is Strategy.RANDOM:
        return shuffled[:k]
    preferred = [candidate for candidate in shuffled if candidate.in_preferred_class]
    others = [candidate for candidate in shuffled if not candidate.in_preferred_class]
    target = k
    if Strategy(strategy) is Strategy.BALANCED:
        target = k // 2 + (int(rng.integers(2)) if k % 2 else 0)
    first, second = quotas(k, len(preferred), len(others), target)
    return preferred[:first] + others[:second]


def _chosen(
    rule: OwnFunction[Selects], candidates: list[Candidate], k: int, rng: np.random.Generator
) -> list[Candidate]:
    """Returns the choice of a function of the user's, checked."""
    found = rule.call(KEY, tuple(candidates), k, rng)
    expected = f"at most {k} different ones of the candidates that it was given"
    chosen = list(found) if isinstance(found, Sequence) else None
    if chosen is None or any(one not in candidates for one in chosen):
        raise rule.refuse(KEY, f"{type(found).__name__} {found!r:.60}", expected)
    if len(chosen) > k or len({one.sample_id for one in chosen}) < len(chosen):
        raise rule.refuse(KEY, f"the candidates {[one.sample_id for one in chosen]}", expected)
    return chosen


def _one_per_answer(ordered: list[Candidate], rng: np.random.Generator) -> list[Candidate]:
    """Returns one candidate of each answer, in their order: a drawn order would put frequent answers
    first."""
    drawn: dict[str | None, Candidate] = {}
    for i in rng.permutation(len(ordered)):
        drawn.setdefault(ordered[i].answer, ordered[i])
    return sorted(drawn.values(), key=lambda candidate: candidate.sample_id)


def quotas(k: int, preferred: int, others: int, target: int) -> tuple[int, int]:
    """Returns how many of `k` to take from the preferred class, of which `target` are wanted, and from the
    other, given their sizes."""
    second = min(others, k - min(preferred, target))
    return min(preferred, k - second), second
