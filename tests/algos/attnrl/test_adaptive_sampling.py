"""Filter, expansion and batch size of AttnRL, worked out by hand; who is expanded, trained or rejected."""

import math

import numpy as np
import pytest
from attnrl_tools import LINES, SAMPLING, annotate, method, segments
from hypothesis import given
from hypothesis import strategies as st
from marsrl_script import ScriptedEngine
from scheduler_tools import problems
from scripted_engine import Reply

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
from marsrl_verl.algos.attnrl.method import CONTINUATION
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.core.stage import EndReason


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


# --- what becomes of each problem ------------------------------------------------------------------

RIGHT = {"p0": 3, "p1": 1, "p2": 3, "p3": 6, "p4": 6, "p5": 0}
"""First responses of six that are right."""
INFLUENCE = {"p0": 0.1, "p1": 0.2, "p2": 0.6, "p3": 0.3, "p4": 0.7, "p5": 0.2}
"""Mean influence of a step. Of all problems the mean is 0.35, of the two that are always solved 0.5."""
EXPANDED, AS_IT_IS, NOTHING, REJECTED = "expanded", "first responses", "no difference", "rejected"


def became(rule: FilterRule, train_unbranched: bool = True) -> dict[str, str]:
    """What becomes of each problem, from the round of first responses to the one of continuations."""

    def answers(item, k):
        right = k < RIGHT[item.problem.problem_id] if item.prefix is None else k == 0
        return Reply(f"{LINES}\\boxed{{{item.problem.ground_truth if right else 'no'}}}")

    attnrl = method(group_size=6, filter=rule, train_unbranched=train_unbranched)
    scheduler, engine = Scheduler(attnrl, "pipelined"), ScriptedEngine(answers)
    scheduler.start_step(1, problems(6))
    scheduler.absorb(engine.generate(scheduler.next_round(), SAMPLING))
    for group in scheduler.completed_stages():
        for one in group.trajectories:
            annotate(attnrl, one, [INFLUENCE[group.request.problem.problem_id]] * 10)
    result = scheduler.finish_step()
    ended = {end.problem_id: end.reason for end in result.ended}
    trained = {group.request.problem.problem_id: group for group in result.trained}
    found = {}
    for name in RIGHT:
        if name not in ended:
            found[name] = EXPANDED
        elif name in trained:
            found[name] = AS_IT_IS
            credited = segments(attnrl, [trained[name]])
            assert list(credited) == [one.trajectory_id for one in trained[name].trajectories]
            assert all(value for parts in credited.values() for _, value in parts)
        else:
            found[name] = REJECTED if ended[name] is EndReason.REJECTED else NOTHING
    scheduler.start_step(2, [])
    continued = {item.problem.problem_id for item in scheduler.next_round() if item.stage == CONTINUATION}
    assert continued == {name for name, fate in found.items() if fate == EXPANDED}
    return found


PAPER = {
    "p0": AS_IT_IS, "p1": AS_IT_IS, "p2": EXPANDED, "p3": REJECTED, "p4": EXPANDED, "p5": NOTHING,
}  # fmt: skip
RULES = {
    FilterRule.NONE: dict.fromkeys(RIGHT, EXPANDED),
    FilterRule.RELEASED: dict.fromkeys(RIGHT, EXPANDED) | {"p3": REJECTED},
    FilterRule.PAPER: PAPER,
}


@pytest.mark.parametrize("rule", FilterRule)
def test_the_rules_side_by_side(rule):
    assert became(rule) == RULES[rule]


def test_without_unexpanded_responses_only_expanded_problems_are_trained():
    found = became(FilterRule.PAPER, train_unbranched=False)
    assert found == PAPER | {"p0": NOTHING, "p1": NOTHING}
