"""Filter, expansion and batch size of AttnRL, worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.attnrl.adaptive_sampling import (
    BatchController,
    ExpansionRounding,
    FilterMean,
    FilterRule,
    ProblemStatistics,
    RunningMean,
    TreeChoice,
    choose_trees,
    passes_filter,
    trees_to_expand,
)


@pytest.mark.parametrize(
    ("rounding", "trees"),
    [
        (ExpansionRounding.ROUND, [6, 5, 4, 4, 3, 3, 2]),
        (ExpansionRounding.CEIL, [6, 6, 5, 4, 4, 3, 3]),
        (ExpansionRounding.ALL, [6] * 7),
    ],
)
def test_trees_of_six_responses_by_how_many_are_right(rounding, trees):
    """exp(-c/6) * 6 = 6, 5.08, 4.30, 3.64, 3.08, 2.61, 2.21 for c = 0 … 6 (arXiv 2509.26628, eq. 9)."""
    assert [trees_to_expand(ProblemStatistics(c, 6, 0.0), rounding) for c in range(7)] == trees


@pytest.mark.parametrize(
    ("rule", "right", "influence", "kept"),
    [
        (FilterRule.PAPER, 6, 0.4, False),
        (FilterRule.PAPER, 0, 0.5, True),
        (FilterRule.PAPER, 3, 0.6, True),
        (FilterRule.RELEASED, 6, 0.5, False),
        (FilterRule.RELEASED, 6, 0.51, True),
        (FilterRule.RELEASED, 5, 0.1, True),
        (FilterRule.NONE, 6, 0.1, True),
    ],
)
def test_filters_at_a_mean_of_one_half(rule, right, influence, kept):
    """The paper keeps what reaches the mean; the released filter wants more, of what is all right."""
    assert passes_filter(ProblemStatistics(right, 6, influence), rule, 0.5) is kept


def test_equal_problems_all_pass_the_papers_filter_whatever_the_rounding():
    mean = RunningMean(FilterMean.CUMULATIVE, 0.9)
    for _ in range(7):
        mean.update([0.1] * 3)
    assert passes_filter(ProblemStatistics(1, 6, 0.1), FilterRule.PAPER, mean.value)
    assert not passes_filter(ProblemStatistics(6, 6, 0.1), FilterRule.RELEASED, mean.value)


def test_the_cumulative_mean_weighs_problems_alike_and_the_moving_one_forgets():
    cumulative, moving = RunningMean(FilterMean.CUMULATIVE, 0.9), RunningMean(FilterMean.EMA, 0.9)
    for mean in (cumulative, moving):
        mean.update([1.0, 1.0, 1.0])
        mean.update([])
        mean.update([5.0])
    assert cumulative.value == pytest.approx(2.0)
    assert moving.value == pytest.approx(0.9 * 1.0 + 0.1 * 5.0)
    again = RunningMean(FilterMean.CUMULATIVE, 0.9)
    again.load_state_dict(cumulative.state_dict())
    again.update([2.0])
    assert again.value == pytest.approx(2.0) and again.count == 5


def test_the_rarer_kind_goes_first():
    rng = np.random.default_rng(0)
    right = [True, True, False, True, True, True]
    for _ in range(10):
        picked = choose_trees(right, 3, TreeChoice.MINORITY, rng)
        assert 2 in picked and len(set(picked)) == 3 and picked == sorted(picked)
    # One half each: the wrong ones are the rarer kind.
    assert choose_trees([True, False], 1, TreeChoice.MINORITY, rng) == [1]
    assert choose_trees([False, False, True], 1, TreeChoice.MINORITY, rng) == [2]
    assert choose_trees([True] * 6, 3, TreeChoice.MINORITY, rng) == [0, 1, 2]


def test_trees_at_random():
    drawn = {
        tuple(choose_trees([True] * 6, 3, TreeChoice.RANDOM, np.random.default_rng(seed)))
        for seed in range(60)
    }
    assert len(drawn) > 12
    assert choose_trees([True] * 6, 9, TreeChoice.RANDOM, np.random.default_rng(0)) == list(range(6))


def controller(**settings) -> BatchController:
    return BatchController(
        **{"target_samples": 1920, "problems": 64.0, "least": 1, "most": 256, "smoothing": 0.9, **settings}
    )


def test_the_batch_grows_when_few_samples_are_worth_training():
    """0.9 * 64 + 0.1 * 1920 / 1200 * 64 = 57.6 + 10.24 = 67.84."""
    one = controller()
    one.observe(1200)
    assert one.problems == pytest.approx(67.84) and one.number() == 68


def test_no_sample_at_all_asks_for_the_most_and_stays_inside_the_limits():
    one = controller(most=100)
    one.observe(0)
    assert one.problems == pytest.approx(0.9 * 64 + 0.1 * 100)
    for _ in range(100):
        one.observe(0)
    assert one.number() == 100
    few = controller(least=50)
    for _ in range(100):
        few.observe(10**6)
    assert few.number() == 50


def test_small_changes_add_up():
    one = controller(problems=3.0, target_samples=110)
    for _ in range(20):
        one.observe(100)
    assert one.number() > 3


def test_a_saved_number_is_kept_inside_this_runs_limits():
    one = controller(most=32, problems=16.0)
    one.load_state_dict({"problems": 64.0})
    assert one.number() == 32


@given(st.lists(st.integers(0, 5000), max_size=30), st.floats(0.01, 1.0))
def test_the_number_is_always_inside_the_limits(found, smoothing):
    one = controller(least=4, smoothing=smoothing)
    for samples in found:
        one.observe(samples)
        assert 4 <= one.number() <= 256 and math.isfinite(one.problems)
