from __future__ import annotations

import itertools
from collections import Counter
from math import comb
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marsrl_verl.evaluation.at_k import (
    TAUS,
    best_of_k,
    g_pass_at_k,
    majority_of_k,
    mg_pass_at_k,
    pass_at_k,
    reported_k,
)

COUNTS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


def draws(correct: int, answers: int, k: int) -> list[int]:
    """How many are correct in each draw of k."""
    one_each = [True] * correct + [False] * (answers - correct)
    return [sum(one) for one in itertools.combinations(one_each, k)]


@given(COUNTS, st.integers(1, 12), st.integers(1, 12))
def test_g_pass_at_k_is_the_share_of_draws_with_so_many_correct_ones(numbers, above, below):
    answers, correct, k = numbers
    tau = min(above, below) / max(above, below)
    enough = [found * max(above, below) >= min(above, below) * k for found in draws(correct, answers, k)]
    assert g_pass_at_k(answers, correct, k, tau) == pytest.approx(fmean(enough))


@given(COUNTS)
def test_mg_pass_at_k_is_twice_the_integral_over_the_upper_half(numbers):
    answers, correct, k = numbers
    edges = sorted({0.5, *(i / k for i in range(k + 1) if 2 * i > k)})  # G-Pass@k is level between them
    integral = sum(
        (high - low) * g_pass_at_k(answers, correct, k, high) for low, high in itertools.pairwise(edges)
    )
    assert mg_pass_at_k(answers, correct, k) == pytest.approx(2 * integral)
    if k % 2 == 0:  # the paper's sum
        terms = [g_pass_at_k(answers, correct, k, i / k) for i in range(k // 2 + 1, k + 1)]
        assert mg_pass_at_k(answers, correct, k) == pytest.approx(2 / k * sum(terms))


def test_g_pass_in_closed_form():
    # 48 answers, 24 of them right: all of 16 are in C(24, 16) of C(48, 16) draws.
    assert g_pass_at_k(48, 24, 16, 1.0) == comb(24, 16) / comb(48, 16)
    assert g_pass_at_k(48, 24, 16, 1 / 16) == pytest.approx(pass_at_k(48, 24, 16))
    assert [g_pass_at_k(4, 2, 4, tau) for tau in TAUS] == [1.0, 0.0, 0.0]
    assert g_pass_at_k(25, 7, 25, 0.28) == 1.0, "seven of 25, whatever 0.28 x 25 is rounded to"
    assert mg_pass_at_k(5, 5, 5) == mg_pass_at_k(6, 6, 3) == 1.0
    assert mg_pass_at_k(8, 4, 8) == 0.0


@pytest.mark.parametrize("tau", [0.0, -0.5, 1.01])
def test_impossible_taus_are_refused(tau):
    with pytest.raises(ValueError, match="tau must be above 0"):
        g_pass_at_k(4, 2, 2, tau)


def test_more_answers_than_there_are_can_not_be_drawn():
    for of_k in (majority_of_k, best_of_k):
        with pytest.raises(ValueError, match="pass@3 of 2 answers"):
            of_k([(1, True), (2, False)], 3)


ANSWERS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(ANSWERS, st.data())
def test_the_majority_of_k_is_that_of_all_draws_in_all_orders(answers, data):
    k = data.draw(st.integers(1, len(answers)))

    def is_right(draw) -> bool:
        votes = Counter(answer for answer, _ in draw if answer is not None)
        winner = max(votes, key=votes.__getitem__, default=None)
        return next((right for answer, right in draw if answer is not None and answer == winner), False)

    expected = fmean(map(is_right, itertools.permutations(answers, k)))
    assert majority_of_k(answers, k) == pytest.approx(expected)


def test_one_vote_is_the_accuracy_and_so_are_two():
    answers = [("a", True), ("a", True), ("b", False), ("c", False), (None, False)]
    assert majority_of_k(answers, 1) == pytest.approx(2 / 5)
    voters = answers[:4]
    assert majority_of_k(voters, 2) == pytest.approx(1 / 2)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=6), st.data()
)
def test_best_of_k_is_the_first_best_of_all_draws_in_all_orders(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    chosen = [max(draw, key=lambda one: one[0])[1] for draw in itertools.permutations(answers, k)]
    found = best_of_k(answers, k)
    assert found == pytest.approx(fmean(chosen))
    right = [correct for _, correct in answers]
    assert found <= pass_at_k(len(right), sum(right), k) + 1e-12
    assert best_of_k([(0.0, one) for one in right], k) == pytest.approx(fmean(right)), "chance chooses"
    assert best_of_k([(one, one) for one in right], k) == pytest.approx(pass_at_k(len(right), sum(right), k))


def test_which_k_are_reported():
    assert [reported_k(n) for n in (0, 1, 2, 3, 4, 6, 32)] == [
        [], [], [2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8, 16, 32],
    ]  # fmt: skip


LIGHTEVAL = {
    (16, 5, 8): (
        0.9871794871794872,
        [0.858974358974359, 0.14102564102564102, 0.0, 0.0],
        0.003205128205128205,
    ),
    (48, 30, 16): (
        0.9999999999321463,
        [0.9999839715145519, 0.9423273990377173, 0.17188757573256921, 6.449331222143522e-05],
        0.25924495517120194,
    ),
    (48, 3, 16): (0.7132284921369103, [0.0, 0.0, 0.0, 0.0], 0.0),
    (7, 4, 3): (
        0.9714285714285714,
        [0.9714285714285714, 0.6285714285714286, 0.11428571428571427, 0.11428571428571427],
        0.07619047619047618,
    ),
}
"""pass@k, G-Pass@k at tau = 1/4, 1/2, 3/4, 1 and mG-Pass@k of (answers, correct, k), as lighteval 0.13.0
computes them from scores (`PassAtK.pass_at_k`, `GPassAtK.g_pass_at_k`)."""


@pytest.mark.parametrize("numbers", LIGHTEVAL, ids=str)
def test_figures_equal_lightevals(numbers):
    passes, steady, mean = LIGHTEVAL[numbers]
    assert pass_at_k(*numbers) == pytest.approx(passes, rel=1e-12)
    found = [g_pass_at_k(*numbers, tau) for tau in (0.25, 0.5, 0.75, 1.0)]
    assert found == pytest.approx(steady, rel=1e-9)
    k = numbers[2]
    half_step = (k % 2) / k * g_pass_at_k(*numbers, (k + 1) / 2 / k)  # which lighteval leaves out
    assert mg_pass_at_k(*numbers) == pytest.approx(mean + half_step, rel=1e-9)


@pytest.mark.parametrize(("answers", "correct"), [("aab", 1), ("bba", 0), ("ba", 0), ("ab", 1), ("cabba", 1)])
def test_ties_go_to_the_earliest_as_in_lighteval(answers, correct):
    """What its `MajAtN` 0.13.0 gives for these; "a" is right. In a random order the tied ones share."""
    votes = Counter(answers)
    assert (max(votes, key=votes.__getitem__) == "a") == correct
    best = [answer for answer in votes if votes[answer] == max(votes.values())]
    expected = best.count("a") / len(best)
    assert majority_of_k([(one, one == "a") for one in answers], len(answers)) == pytest.approx(expected)
