import itertools
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.marsrl.config import Config
from marsrl_verl.algos.marsrl.selection import Candidate, Strategy, choose, quotas
from marsrl_verl.settings.rules import OwnFunction, RuleError


def candidates(preferred: dict[str, int], others: dict[str, int]) -> list[Candidate]:
    """So many candidates of each parent in either class."""
    return [
        Candidate(f"{parent}#{'+' if good else '-'}{i}", good)
        for good, sizes in ((True, preferred), (False, others))
        for parent, size in sizes.items()
        for i in range(size)
    ]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def preferred_count(chosen: list[Candidate]) -> int:
    return sum(candidate.in_preferred_class for candidate in chosen)


@pytest.mark.parametrize(
    ("strategy", "preferred", "others", "k", "expected"),
    [
        (Strategy.ADAPTIVE, 5, 3, 2, (2, 0)),
        (Strategy.ADAPTIVE, 1, 7, 2, (1, 1)),
        (Strategy.ADAPTIVE, 0, 8, 2, (0, 2)),
        (Strategy.BALANCED, 4, 4, 2, (1, 1)),
        (Strategy.BALANCED, 8, 0, 2, (2, 0)),
        (Strategy.BALANCED, 1, 7, 4, (1, 3)),
        (Strategy.BALANCED, 7, 1, 4, (3, 1)),
        (Strategy.BALANCED, 0, 1, 4, (0, 1)),
    ],
)
def test_quotas_fill_a_shortage_from_the_other_class(strategy, preferred, others, k, expected):
    assert quotas(k, preferred, others, k if strategy is Strategy.ADAPTIVE else k // 2) == expected
    chosen = choose(candidates({"a": preferred}, {"a": others}), k, strategy, rng())
    assert preferred_count(chosen) == expected[0]
    assert len(chosen) == sum(expected)


@pytest.mark.parametrize(("k", "expected"), [(1, {0, 1}), (3, {1, 2})])
def test_balanced_draws_the_class_of_the_odd_one(k, expected):
    pool = candidates({"a": 5}, {"a": 3})
    counts = Counter(preferred_count(choose(pool, k, "balanced", rng(seed))) for seed in range(2000))
    assert set(counts) == expected
    assert counts[k // 2] / 2000 == pytest.approx(1 / 2, abs=0.04)
    for only in ({"a": 4}, {}), ({}, {"a": 4}):
        assert len(choose(candidates(*only), k, "balanced", rng(1))) == k, "one class may be all there is"


def settings_with(min_groups: int, **changes) -> SimpleNamespace:
    return SimpleNamespace(algo=Config(**changes), pipeline=SimpleNamespace(min_groups=min_groups))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "2 a problem, incorrect solutions and rightly found errors first"),
        ({"selection": "balanced"}, "2 a problem, half of each class"),
        (
            {"selection": "balanced", "requests_per_stage": 1},
            "1 a problem, of either class with equal chance",
        ),
        ({"selection": "balanced", "requests_per_stage": 3}, "each class, the odd one of either with equal"),
        ({"selection": "random", "select_scope": "group"}, "2 a group, drawn from all"),
    ],
)
def test_the_plan_says_which_outputs_become_inputs(changes, said):
    run = SimpleNamespace(settings=settings_with(1, **changes))
    (line,) = run.settings.algo.plan_lines(run)
    assert said in line and line.startswith("  inputs of a stage after the first")


def test_the_plan_of_the_solver_alone_speaks_of_no_inputs():
    run = SimpleNamespace(settings=settings_with(4, train_roles=["solver"]))
    assert run.settings.algo.plan_lines(run) == []


@pytest.mark.parametrize(
    ("least", "changes", "noted"),
    [
        (4, {"verdict_balance": "classes"}, True),
        (4, {"verdict_balance": "errors"}, True),
        (4, {}, False),
        (1, {"verdict_balance": "errors"}, False),
        (4, {"verdict_balance": "errors", "train_roles": ["solver", "corrector"]}, False),
    ],
)
def test_the_plan_says_that_groups_without_a_gradient_count_for_the_floor(least, changes, noted):
    run = SimpleNamespace(settings=settings_with(least, **changes))
    lines = run.settings.algo.plan_lines(run)
    found = [line for line in lines if "marsrl.pipeline.min_groups = 4 counts Verifier groups" in line]
    assert len(found) == noted


def test_a_class_is_drawn_from_uniformly():
    pool = candidates({"a": 4}, {"a": 3})
    counts = Counter(choose(pool, 1, "adaptive", rng(seed))[0].sample_id for seed in range(4000))
    assert set(counts) == {f"a#+{i}" for i in range(4)}
    assert max(counts.values()) / min(counts.values()) < 1.25


class Orders:
    """A generator's `permutation`, one given order after another."""

    def __init__(self, size: int) -> None:
        self.orders = itertools.permutations(range(size))

    def permutation(self, size: int) -> tuple[int, ...]:
        return next(self.orders)


@pytest.mark.parametrize(("size", "k"), [(5, 1), (5, 2), (5, 3), (6, 2)])
def test_random_makes_every_set_equally_likely_over_all_orders(size, k):
    pool = candidates({"a": size - 1}, {"b": 1})
    orders = Orders(size)
    drawn = Counter(
        frozenset(one.sample_id for one in choose(pool, k, "random", orders))
        for _ in range(math.factorial(size))
    )
    assert len(drawn) == math.comb(size, k)
    assert set(drawn.values()) == {math.factorial(size) // math.comb(size, k)}


def test_candidates_given_twice_are_refused():
    pool = candidates({"a": 1}, {})
    with pytest.raises(ValueError, match="a#\\+0"):
        choose(pool + pool, 1, "random", rng())


# --- distinct answers ------------------------------------------------------------------------------


def answered(*answers: str | None) -> list[Candidate]:
    """Candidates of one parent and class, by answer."""
    return [Candidate(f"a#{i}", True, answer) for i, answer in enumerate(answers)]


def test_solutions_of_an_answer_are_drawn_uniformly_and_frequent_answers_do_not_win():
    pool = answered("7", "7", "7", "8")
    counts = Counter(
        choose(pool, 1, "random", rng(seed), distinct_answers=True)[0].sample_id for seed in range(6000)
    )
    assert counts["a#3"] / 6000 == pytest.approx(1 / 2, abs=0.03)
    assert [counts[f"a#{i}"] / 6000 for i in range(3)] == pytest.approx([1 / 6] * 3, abs=0.02)


def test_answers_play_no_part_without_the_option():
    plain = candidates({"a": 4, "b": 2}, {"a": 3})
    same = [replace(candidate, answer="7") for candidate in plain]
    for seed in range(50):
        for strategy in Strategy:
            ids = [candidate.sample_id for candidate in choose(plain, 3, strategy, rng(seed))]
            assert [candidate.sample_id for candidate in choose(same, 3, strategy, rng(seed))] == ids


def test_choices_of_a_seed_stay():
    """Every training run hangs on these random numbers."""
    pool = candidates({"a": 4, "b": 2}, {"a": 3})
    chosen = {name: [one.sample_id for one in choose(pool, 3, name, rng(5))] for name in Strategy}
    assert chosen == {
        Strategy.ADAPTIVE: ["a#+1", "a#+2", "a#+3"],
        Strategy.BALANCED: ["a#+1", "a#+2", "a#-0"],
        Strategy.RANDOM: ["a#+1", "a#-0", "a#+2"],
    }


pools = st.builds(
    candidates,
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 4), max_size=3),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 4), max_size=3),
)


CANDIDATES = st.lists(
    st.tuples(st.sampled_from("ab"), st.booleans(), st.sampled_from(["7", "8", "9", None])), max_size=9
)


@given(
    CANDIDATES,
    st.integers(0, 6),
    st.sampled_from(list(Strategy)),
    st.booleans(),
    st.integers(0, 50),
    st.randoms(),
)
def test_always_k_or_all_of_them_no_duplicates_any_order(rows, k, strategy, distinct, seed, shuffler):
    """Of distinct answers one each; None is one too."""
    pool = [Candidate(f"{parent}#{i}", good, answer) for i, (parent, good, answer) in enumerate(rows)]
    chosen = choose(pool, k, strategy, rng(seed), distinct_answers=distinct)
    kinds = [one.answer if distinct else one.sample_id for one in chosen]
    all_kinds = {one.answer if distinct else one.sample_id for one in pool}
    assert len(kinds) == len(set(kinds)) == min(k, len(all_kinds))
    assert set(chosen) <= set(pool)
    shuffled = list(pool)
    shuffler.shuffle(shuffled)
    assert choose(shuffled, k, strategy, rng(seed), distinct_answers=distinct) == chosen


@given(pools, st.integers(0, 6), st.integers(0, 50), st.randoms())
def test_random_is_blind_to_the_class(pool, k, seed, shuffler):
    relabelled = [replace(one, in_preferred_class=shuffler.random() < 0.5) for one in pool]
    ids = [one.sample_id for one in choose(pool, k, "random", rng(seed))]
    assert [one.sample_id for one in choose(relabelled, k, "random", rng(seed))] == ids


@given(pools, st.integers(0, 6), st.sampled_from(list(Strategy)), st.integers(0, 50))
def test_parents_play_no_part(pool, k, strategy, seed):
    """Ids in one order, whatever the parents are called: the same places are chosen."""
    ordered = sorted(pool, key=lambda one: one.sample_id)
    renamed = [replace(one, sample_id=f"{i:03}") for i, one in enumerate(ordered)]
    chosen = [ordered.index(one) for one in choose(pool, k, strategy, rng(seed))]
    assert [renamed.index(one) for one in choose(renamed, k, strategy, rng(seed))] == chosen


OWN = """
def longest(candidates, k, rng):
    return sorted(candidates, key=lambda one: -len(one.text))[:k]

def drawn(candidates, k, rng):
    return [candidates[i] for i in rng.permutation(len(candidates))[:k]]

def all_of_them(candidates, k, rng):
    return candidates

def twice(candidates, k, rng):
    return [candidates[0]] * 2

def numbers(candidates, k, rng):
    return [0, 1]
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_selection.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda name: OwnFunction(f"own_selection:{name}")


def test_a_function_of_the_user_s_chooses(own):
    pool = [Candidate(f"s{k}", k % 2 == 0, str(k % 3), float(k % 2), "x" * (k * 5 % 7)) for k in range(6)]
    chosen = choose(pool[::-1], 2, own("longest"), rng())
    assert [one.sample_id for one in chosen] == ["s4", "s1"], "6 and 5 characters"
    assert choose(pool, 3, own("drawn"), rng(1)) == choose(pool[::-1], 3, own("drawn"), rng(1))
    distinct = choose(pool, 6, own("longest"), rng(), distinct_answers=True)
    assert sorted(one.answer for one in distinct) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("all_of_them", r"returned the candidates \['s0', 's1', 's2'\]; expected at most 2 different ones"),
        ("twice", "expected at most 2 different"),
        ("numbers", r"returned list \[0, 1\]"),
    ],
)
def test_what_it_must_not_choose(own, name, said):
    with pytest.raises(RuleError, match=said) as refused:
        choose([Candidate(f"s{k}", True) for k in range(3)], 2, own(name), rng())
    assert str(refused.value).startswith(f"marsrl.algo.selection = own_selection:{name} ")
