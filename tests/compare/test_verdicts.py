"""Verdicts of comparisons: Holm by hand, and simulated suites with known effects."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.compare.statistics import sign_flip_p, t_interval
from marsrl_verl.compare.verdicts import (
    Verdict,
    bootstrap_interval,
    detectable_difference,
    holm,
    judge,
    seeds_to_decide,
)

SEEDS, SUITES = 8, 1500


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5: 4 x 0.01, 3 x 0.02, 2 x 0.03 (not below 0.06), 0.5.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.4, 0.6]) == [0.8, 0.8]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_lowers_nothing(values):
    adjusted = holm(values)
    assert all(a >= p and a <= 1 for a, p in zip(adjusted, values, strict=True))
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [adjusted[i] for i in order] == sorted(adjusted)


def simulated(effect: float, kind: str = "normal", seeds: int = SEEDS, suites: int = SUITES) -> np.ndarray:
    """(suites, seeds) differences with spread 1 around an effect."""
    rng = np.random.default_rng(7)
    if kind == "normal":
        noise = rng.normal(size=(suites, seeds))
    elif kind == "uniform":
        noise = rng.uniform(-math.sqrt(3), math.sqrt(3), (suites, seeds))
    else:  # the difference of two skewed accuracies near their ceiling
        noise = (rng.beta(8, 1.5, (suites, seeds)) - rng.beta(8, 1.5, (suites, seeds))) / 0.1613
    return effect + noise


@pytest.mark.parametrize("kind", ["normal", "uniform", "ceiling"])
def test_intervals_hold_the_truth_as_often_as_they_say(kind):
    found = simulated(0.3, kind)
    inside = [one.low <= 0.3 <= one.high for one in map(t_interval, found.tolist())]
    assert 0.93 <= sum(inside) / len(inside) <= 0.97
    intervals = [bootstrap_interval(one, resamples=400) for one in found[:600]]
    held = sum(low <= 0.3 <= high for low, high in intervals) / len(intervals)
    assert 0.92 <= held <= 0.98


@pytest.mark.parametrize(("methods", "metrics"), [(1, 1), (3, 2)])
def test_false_verdicts_are_at_most_one_suite_in_twenty(methods, metrics):
    """Of methods that do not differ, however many outcomes a suite has."""
    wrong, suites = 0, 400
    rng = np.random.default_rng(3)
    for _ in range(suites):
        values = {
            (f"m{i}", f"o{j}"): rng.normal(size=SEEDS).tolist()
            for i in range(methods)
            for j in range(metrics)
        }
        verdicts = {one.verdict for one in judge(values, margin=0.01)}
        wrong += bool(verdicts & {Verdict.BETTER, Verdict.WORSE})
    # 5 % and three standard errors of so many suites.
    assert wrong / suites <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / suites)


@pytest.mark.parametrize("seeds", [6, 8, 12])
def test_power_is_as_computed(seeds):
    effect = detectable_difference(1.0, seeds)
    clear = [one.sign == 1 for one in map(t_interval, simulated(effect, seeds=seeds).tolist())]
    assert sum(clear) / len(clear) == pytest.approx(0.8, abs=0.04)


def test_the_exact_test_has_nearly_the_power_of_the_t_test():
    effect = detectable_difference(1.0, SEEDS)
    rows = simulated(effect, suites=500).tolist()
    better = [judge({("m", "o"): row}, margin=0.01)[0].verdict is Verdict.BETTER for row in rows]
    assert sum(better) / len(better) > 0.72


@pytest.mark.parametrize("outcomes", [1, 4, 6])
def test_what_would_show_shows_in_four_suites_of_five(outcomes):
    """With the exact test, at Holm's first level: the other outcomes have no difference."""
    effect = judge({("m", str(k)): simulated(0.0)[0].tolist() for k in range(outcomes)}, margin=0.01)[0]
    ratio = effect.detectable / np.std(effect.values, ddof=1)
    assert ratio > detectable_difference(1.0, SEEDS, 1 - 0.05 / outcomes) * 0.98, (
        "the exact test has less power"
    )
    level = 0.05 / outcomes
    found = [sign_flip_p(row) < level and sum(row) > 0 for row in simulated(ratio, suites=600).tolist()]
    assert sum(found) / len(found) == pytest.approx(0.8, abs=0.05)


def test_equivalent_where_the_difference_is_surely_small():
    near = judge({("m", "o"): [0.001, -0.002, 0.0, 0.002, -0.001, 0.001]}, margin=0.01)[0]
    assert (near.verdict, near.p) == (Verdict.EQUIVALENT, pytest.approx(1.0, abs=0.2))
    far = judge({("m", "o"): [0.05, -0.06, 0.0, 0.07, -0.04, 0.02]}, margin=0.01)[0]
    assert far.verdict is Verdict.UNDECIDED and far.detectable > 0.04


def test_clear_differences_and_few_seeds():
    values = {("up", "o"): [0.1, 0.12, 0.09, 0.11, 0.1, 0.13, 0.1], ("down", "o"): [-0.2] * 7}
    up, down = judge(values, margin=0.01)
    assert (up.verdict, down.verdict) == (Verdict.BETTER, Verdict.WORSE)
    assert up.adjusted_p == pytest.approx(2 * 2 / 128) and up.p == pytest.approx(2 / 128)
    # Three seeds can't reach 5 % with the exact test.
    few = judge({("m", "o"): [0.1, 0.11, 0.12]}, margin=0.01)[0]
    assert (few.verdict, few.p) == (Verdict.UNDECIDED, 0.25)
    none = judge({("m", "o"): []}, margin=0.01)[0]
    assert (none.verdict, none.p, none.detectable) == (Verdict.UNDECIDED, None, None)


def test_many_seeds_are_flipped_at_random():
    rng = np.random.default_rng(5)
    same, other = rng.normal(size=30), rng.normal(size=30) + 1.0
    found = judge({("same", "o"): same.tolist(), ("other", "o"): other.tolist()}, margin=0.01)
    assert found[0].verdict is Verdict.UNDECIDED and found[0].p > 0.1
    assert found[1].verdict is Verdict.BETTER and found[1].p < 0.001


def test_a_bootstrap_needs_a_spread():
    assert bootstrap_interval([0.1, 0.1, 0.1]) is None and bootstrap_interval([0.1, 0.2]) is None


def test_how_many_seeds_can_show_anything():
    """The smallest p of n seeds is 2 / 2^n; Holm multiplies it by the number of outcomes."""
    assert [seeds_to_decide(outcomes) for outcomes in (1, 2, 4, 8)] == [6, 7, 8, 9]
    far = [0.3, 0.31, 0.29, 0.3, 0.32]
    found = judge({("m", str(k)): far for k in range(4)}, margin=0.02)
    assert {one.verdict for one in found} == {Verdict.UNDECIDED}, "whatever the difference"
    assert {(one.detectable, one.seeds_needed) for one in found} == {(None, 8)}
    (alone,) = judge({("m", "x"): [*far, 0.3]}, margin=0.02)
    assert alone.verdict is Verdict.BETTER and 0 < alone.detectable < 0.05
    (first, *_) = judge({("m", str(k)): [*far, 0.3, 0.31, 0.3] for k in range(4)}, margin=0.02)
    (single,) = judge({("m", "x"): [*far, 0.3, 0.31, 0.3]}, margin=0.02)
    assert first.detectable > single.detectable, "tested at a quarter of the level"
