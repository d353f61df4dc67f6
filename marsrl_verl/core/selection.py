"""Choose which outputs of one stage become inputs of the next (MarsRL, arXiv 2511.11373, §3.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np


class Strategy(str, Enum):
    """Which class of candidates goes first. The caller says what the preferred class is: for a
    Verifier the incorrect solutions, for a Corrector the errors that were found rightly."""

    RANDOM = "random"
    """All candidates alike."""
    BALANCED = "balanced"
    """Half from each class, the preferred one taking the odd one."""
    ADAPTIVE = "adaptive"
    """The preferred class as far as it reaches."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An eligible output of the preceding stage."""

    sample_id: str
    parent_id: str
    """The input it answers (its group): chosen candidates come from different ones where possible."""
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

    Each class is drawn from uniformly. A class that is too small is filled up from the other. The
    classes come first; within what they leave open, the choice has as many different parents as
    possible. The result depends on the set of candidates and on `rng`, not on their order.

    Returns:
        The chosen candidates, preferred class first.
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
        return _spread([shuffled] * min(k, len(shuffled)))
    preferred = [candidate for candidate in shuffled if candidate.in_preferred_class]
    others = [candidate for candidate in shuffled if not candidate.in_preferred_class]
    first, second = quotas(k, len(preferred), len(others), Strategy(strategy))
    return _spread([preferred] * first + [others] * second)


def _one_per_answer(ordered: list[Candidate], rng: np.random.Generator) -> list[Candidate]:
    """One candidate of each answer, in their order: a drawn order would put frequent answers first."""
    drawn: dict[str | None, Candidate] = {}
    for i in rng.permutation(len(ordered)):
        drawn.setdefault(ordered[i].answer, ordered[i])
    return sorted(drawn.values(), key=lambda candidate: candidate.sample_id)


def quotas(k: int, preferred: int, others: int, strategy: Strategy) -> tuple[int, int]:
    """How many of `k` to take from the preferred class and from the other, given their sizes."""
    wanted = k if strategy is Strategy.ADAPTIVE else (k + 1) // 2
    second = min(others, k - min(preferred, wanted))
    return min(preferred, k - second), second


def _spread(slots: list[list[Candidate]]) -> list[Candidate]:
    """Fill every slot from its class (a shuffled list, as long as its slots or longer).

    A slot takes the first candidate whose parent no other slot has. Where all parents are taken,
    earlier slots are moved to other parents of theirs if that frees one (augmenting paths of a
    bipartite matching). Slots that still have none take the least used parent.
    """
    holder: dict[str, int] = {}

    def place(slot: int, tried: set[str]) -> bool:
        for parent in dict.fromkeys(candidate.parent_id for candidate in slots[slot]):
            if parent in tried:
                continue
            tried.add(parent)
            if parent not in holder or place(holder[parent], tried):
                holder[parent] = slot
                return True
        return False

    for slot in range(len(slots)):
        place(slot, set())
    chosen: dict[int, Candidate] = {}
    for parent, slot in holder.items():
        chosen[slot] = next(candidate for candidate in slots[slot] if candidate.parent_id == parent)
    taken = {candidate.sample_id for candidate in chosen.values()}
    uses = Counter(candidate.parent_id for candidate in chosen.values())
    for slot in range(len(slots)):
        if slot in chosen:
            continue
        free = [candidate for candidate in slots[slot] if candidate.sample_id not in taken]
        chosen[slot] = min(free, key=lambda candidate: uses[candidate.parent_id])
        taken.add(chosen[slot].sample_id)
        uses[chosen[slot].parent_id] += 1
    return [chosen[slot] for slot in range(len(slots))]
