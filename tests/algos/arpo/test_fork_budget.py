"""Which wishes for forks are granted: never because of who was quicker."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marsrl_verl.algos.arpo.budget import Birth, Budget, Supplements

TOGETHER, ONE_BY_ONE = Supplements.TOGETHER, Supplements.ONE_BY_ONE


def born(budget: Budget, wishes=None, ended=()) -> dict[int, tuple[int | None, int]]:
    found = budget.allot(wishes or {}, set(ended)).births
    return {one.number: (one.parent, one.level) for one in found}


def test_roots_alone_at_the_beginning():
    assert born(Budget(6, 3, 1, 2)) == dict.fromkeys(range(3), (None, 0))


def test_a_wish_waits_for_those_before_it():
    budget = Budget(4, 2, 1, 2)
    found = budget.allot({1: [[True]]}, set())
    assert [one.number for one in found.births] == [0, 1] and found.waiting == {1}
    assert born(budget, {0: [[False]], 1: [[True]]})[2] == (1, 1)


def test_the_first_results_go_before_the_second_ones_and_low_numbers_first():
    budget = Budget(5, 2, 1, 2)
    wishes = {0: [[True], [True]], 1: [[True], [True]]}
    assert born(budget, wishes) == {0: (None, 0), 1: (None, 0), 2: (0, 1), 3: (1, 1), 4: (0, 2)}


def test_a_fork_is_forked_after_those_that_were_there():
    budget = Budget(6, 1, 1, 2)
    assert born(budget, {0: [[True], [False]], 1: [[True]]}, {0, 1}) == {
        0: (None, 0), 1: (0, 1), 2: (1, 2), 3: (None, 0), 4: (None, 0), 5: (None, 0),
    }  # fmt: skip


def test_places_that_no_fork_can_take_are_filled_at_once():
    """Of 8 places two are left to one trajectory, which can still be forked after two results: 3 forks."""
    budget = Budget(8, 3, 1, 2)
    found = budget.allot({}, {0, 1})
    assert [one.number for one in found.births] == [0, 1, 2, 6, 7]
    assert all(not one.forkable for one in found.births[3:])
    assert [one.number for one in budget.allot({2: [[False]]}, {0, 1}).births] == [0, 1, 2, 4, 5, 6, 7]
    assert sorted(born(budget, {}, {0, 1, 2})) == list(range(8))


def test_one_by_one_the_next_root_waits_for_all():
    budget = Budget(4, 1, 1, 1, ONE_BY_ONE)
    assert sorted(born(budget, {}, {0})) == [0, 1]
    assert born(budget, {1: [[True]]}, {0}) == {0: (None, 0), 1: (None, 0), 2: (1, 1)}
    assert sorted(born(budget, {1: [[True]]}, {0, 1})) == [0, 1, 2]
    assert sorted(born(budget, {1: [[True]]}, {0, 1, 2})) == [0, 1, 2, 3]


def test_several_forks_at_one_place_as_far_as_places_reach():
    assert born(Budget(3, 1, 3, 1), {0: [[False, True, True]]})[1] == (0, 1)
    assert sorted(born(Budget(3, 1, 3, 1), {0: [[True, False, True]]}, {0})) == [0, 1, 2]
    # As many tries as there are places, in their order.
    found = Budget(3, 1, 3, 1).allot({0: [[False, False, True]]}, {0}).births
    assert [(one.number, one.parent) for one in found] == [(0, None), (1, None), (2, None)]


def test_roots_are_some_of_all():
    with pytest.raises(ValueError, match="9 roots of 8"):
        Budget(8, 9, 1, 3)


@dataclass
class Group:
    """A group whose trajectories' wishes and ends are functions of who they are; they happen in any order."""

    budget: Budget
    seed: int
    order: random.Random
    wishes: dict[int, list[list[bool]]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    births: dict[int, Birth] = field(default_factory=dict)

    def run(self) -> dict[int, Birth]:
        self._allot()
        while going := sorted(self.births.keys() - self.ended):
            number = self.order.choice(going)
            self._happen(self.births[number])
            self._allot()
        return self.births

    def _happen(self, one: Birth) -> None:
        """Its next result, or its end."""
        known = self.wishes.setdefault(one.number, [])
        level = one.level + len(known) + 1
        own = random.Random(f"{self.seed} {one.parent} {one.number} {level}")
        if not one.forkable or level > self.budget.levels or own.random() < 0.4:
            self.ended.add(one.number)
            return
        known.append([own.random() < 0.6 for _ in range(self.budget.forks)])

    def _allot(self) -> None:
        found = self.budget.allot(self.wishes, self.ended)
        now = {one.number: one for one in found.births}
        assert len(now) == len(found.births) <= self.budget.size
        assert self.births.items() <= now.items(), "what is certain stays so"
        assert found.waiting <= now.keys()
        self.births = now
        if now.keys() == self.ended:
            assert not found.waiting


BUDGETS = st.builds(
    lambda roots, more, forks, levels, how: Budget(roots + more, roots, forks, levels, how),
    st.integers(1, 5),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(list(Supplements)),
)


@given(BUDGETS, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
@settings(max_examples=300)
def test_every_group_is_full_and_the_same_in_any_order(budget, seed, first, second):
    one = Group(budget, seed, random.Random(first)).run()
    other = Group(budget, seed, random.Random(second)).run()
    assert one == other
    assert sorted(one) == list(range(budget.size)), "roots and forks are M"
    roots = [birth for birth in one.values() if birth.parent is None]
    assert len(roots) >= budget.roots
    for birth in one.values():
        if birth.parent is not None:
            assert birth.parent < birth.number and one[birth.parent].level < birth.level <= budget.levels
