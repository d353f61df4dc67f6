"""Choose which outputs of one stage become inputs of the next (MarsRL, arXiv 2511.11373, §3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marsrl_verl.settings.choices import Choice


class Strategy(Choice):
    """Which class of candidates goes first. The caller says what the preferred class is: for a
    Verifier the incorrect solutions, for a Corrector the errors that were found rightly."""

    RANDOM = "random"
    """Uniformly over all candidates."""
    BALANCED = "balanced"
    """Half from each class; the odd one is drawn from either with equal chance."""
    ADAPTIVE = "adaptive"
    """The preferred class as far as it reaches."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An eligible output of the preceding stage."""

    sample_id: str
    in_preferred_class: bool
    answer: str | None = None
    """The final answer of a solution; None: none could be read."""


def choose(
    candidates: Sequence[Candidate],
    k: int,
    strategy: Strategy | str,
    rng: np.random.Generator,
    *,
    distinct_answers: bool = False,
) -> list[Candidate]:
    """Choose `k` candidates without replacement, or all of them when there are fewer.

    With `distinct_answers` only one candidate of each answer, drawn uniformly, takes part; those without a
    readable answer count as one answer.

    Every set of `k` candidates is equally likely with `random`; with the other strategies every choice
    within a class. A class that is too small is filled up from the other. It makes no difference which
    inputs the candidates answer, nor in which order they are given: the result depends on the set of
    candidates and on `rng`.

    Returns:
        The chosen candidates, for `balanced` and `adaptive` the preferred class first.
    """
    ids = [candidate.sample_id for candidate in candidates]
    if len(set(ids)) != len(ids):
        twice = sorted(name for name, count in Counter(ids).items() if count > 1)
        raise ValueError(f"selection: candidates given twice: {twice}")
    if k < 0:
        raise ValueError(f"selection: cannot choose {k} candidates, expected 0 or more")
    ordered = sorted(candidates, key=lambda candidate: candidate.sample_id)
    if distinct_answers:
        ordered = _one_per_answer(ordered, rng)
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


def _one_per_answer(ordered: list[Candidate], rng: np.random.Generator) -> list[Candidate]:
    """One candidate of each answer, in their order: a drawn order would put frequent answers first."""
    drawn: dict[str | None, Candidate] = {}
    for i in rng.permutation(len(ordered)):
        drawn.setdefault(ordered[i].answer, ordered[i])
    return sorted(drawn.values(), key=lambda candidate: candidate.sample_id)


def quotas(k: int, preferred: int, others: int, target: int) -> tuple[int, int]:
    """How many of `k` to take from the preferred class, of which `target` are wanted, and from the other,
    given their sizes."""
    second = min(others, k - min(preferred, target))
    return min(preferred, k - second), second
