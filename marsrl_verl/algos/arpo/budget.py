"""Allots the places of a group to forks if there are fewer places than wishes, and finds the places that no
fork can take any more.

A group has exactly M trajectories: N roots, and forks. A trajectory's wishes for forks depend on itself
alone. Which of them are granted must not depend on the speed of tools: they are granted in the order of the
results read, then of the trajectories' numbers, each as soon as all before it are known. Only the fork itself
waits for that; the trajectory that is forked goes on. Places that forks leave are filled with further roots,
as soon as it is certain that no fork takes them (`Supplements`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from marsrl_verl.settings.choices import Choice


class Supplements(Choice):
    """Ways to fill places that no fork takes (`BranchingConfig.supplements`)."""

    TOGETHER = "together"
    ONE_BY_ONE = "one_by_one"


@dataclass(frozen=True, slots=True)
class Birth:
    """The beginning of a trajectory."""

    number: int
    parent: int | None = None
    """The trajectory that it is forked from; None: it begins at the prompt."""
    level: int = 0
    """Results that it shares with its parent."""
    forkable: bool = True
    """If false, there can be no place for a fork of it."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """Births that are certain, and the trajectories that wait."""

    births: tuple[Birth, ...]
    waiting: frozenset[int]
    """Trajectories with a wish that is neither granted nor rejected yet."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The places of a group."""

    size: int
    """Trajectories of the group (M)."""
    roots: int
    """Trajectories that begin at the prompt (N)."""
    forks: int
    """Most forks at one place, Z - 1."""
    levels: int
    """Most results of a trajectory after which it can be forked."""
    supplements: Supplements = Supplements.TOGETHER

    def __post_init__(self) -> None:
        if not 1 <= self.roots <= self.size:
            raise ValueError(f"{self.roots} roots of {self.size} trajectories: expected 1 to all")

    def allot(self, wishes: Mapping[int, Sequence[Sequence[bool]]], ended: Container[int]) -> Allotment:
        """Returns what is certain of a group; it stays so, whatever else becomes known.

        Args:
            wishes: by trajectory, for each result that it has read since its birth whether each of `forks`
                tries is a fork.
            ended: trajectories that read no further result.

        Returns:
            Births by number, and the trajectories that wait. When all have ended there are `size` births.
        """
        state = _Allotting(self, wishes, ended)
        state.run()
        return Allotment(tuple(sorted(state.births, key=lambda one: one.number)), state.waiting())


class _Allotting:
    """One pass over the known wishes."""

    def __init__(
        self, budget: Budget, wishes: Mapping[int, Sequence[Sequence[bool]]], ended: Container[int]
    ) -> None:
        self.budget, self.wishes, self.ended = budget, wishes, ended
        self.births = [Birth(number) for number in range(budget.roots)]
        self.places = budget.size - budget.roots
        self.decided: dict[int, int] = {one.number: 0 for one in self.births}
        """By trajectory: the level through which its wishes are granted or rejected."""

    def run(self) -> None:
        wave = list(self.births)
        while self._grant(wave):
            one_by_one = self.budget.supplements is Supplements.ONE_BY_ONE
            if not one_by_one or not self.places or any(one.number not in self.ended for one in self.births):
                break
            wave = [Birth(len(self.births))]
            self._born(wave[0])
        if self.budget.supplements is Supplements.TOGETHER:
            last = self.budget.size
            for back in range(1, 1 + max(0, self.places - self._possible())):
                self.births.append(Birth(last - back, forkable=False))

    def _grant(self, wave: list[Birth]) -> bool:
        """Grants the known wishes of a wave and of its forks; returns whether all of them are known."""
        for level in range(1, self.budget.levels + 1):
            for one in [one for one in wave if one.level < level]:
                wish = self._wish(one, level)
                if wish is None:
                    return False
                self.decided[one.number] = level
                for _ in range(sum(wish[: self.places])):
                    wave.append(Birth(len(self.births), one.number, level))
                    self._born(wave[-1])
        return True

    def _born(self, one: Birth) -> None:
        self.births.append(one)
        self.decided[one.number] = one.level
        self.places -= 1

    def _wish(self, one: Birth, level: int) -> Sequence[bool] | None:
        """Returns a trajectory's wish at a level; None: it is not known yet."""
        known, at = self.wishes.get(one.number, ()), level - one.level - 1
        if at < len(known):
            return known[at]
        return () if one.number in self.ended else None

    def _open(self, one: Birth) -> range:
        """Returns the levels at which its wishes are neither granted nor rejected."""
        return range(max(one.level, self.decided[one.number]) + 1, self.budget.levels + 1)

    def _possible(self) -> int:
        """Returns the most forks that can still be granted. One that is born at a level may be forked after
        each later result, and so on: it takes (1 + forks) ** (levels - level) places at most."""
        found = 0
        for one in self.births:
            for level in self._open(one):
                wish = self._wish(one, level)
                count = self.budget.forks if wish is None else sum(wish)
                found += count * (1 + self.budget.forks) ** (self.budget.levels - level)
        return found

    def waiting(self) -> frozenset[int]:
        if not self.places:
            return frozenset()
        return frozenset(
            one.number
            for one in self.births
            if one.forkable and any(any(self._wish(one, level) or ()) for level in self._open(one))
        )
