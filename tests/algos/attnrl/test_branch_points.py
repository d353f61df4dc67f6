"""Branch points, worked out by hand."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.attnrl.branch_points import (
    BY_TOKEN,
    BranchCriterion,
    BranchPoint,
    BranchRule,
    FciAggregation,
    OnTooFew,
    ResponseFeatures,
    aggregated_influence,
    choose_branch_points,
)
from marsrl_verl.core.reasoning_steps import Steps


def response_features(
    lengths: list[int], *, thinking: int | None = None, prompt: int = 10, **known
) -> ResponseFeatures:
    """Steps of these lengths."""
    steps = Steps(tuple(np.cumsum(lengths).tolist()), len(lengths) if thinking is None else thinking)
    return ResponseFeatures(steps, prompt, **known)


def chosen(one: ResponseFeatures, seed: int = 0, **rule) -> list[int]:
    """Kept tokens of each point, repeated as often as the point was taken."""
    points = choose_branch_points(one, BranchRule(**rule), np.random.default_rng(seed))
    assert points == sorted(points, key=lambda point: point.token)
    return [point.token for point in points for _ in range(point.times)]


TEN = [5] * 10
INFLUENCE = [0, 0.1, 0.9, 0.2, 0.8, 0.7, 0.1, 0, 0, 0]
"""The quantile 0.8 of these ten is 0.72 (between 0.7 and 0.8), so that steps 2 and 4 are candidates."""


FEW = [0, 0, 0, 0.3, 0, 0, 0, 0, 0.1, 0]
"""Of these it is below 0.1, so that any positive value is a candidate."""


@pytest.mark.parametrize(
    ("influence", "rule", "points"),
    [
        pytest.param(INFLUENCE, {}, [10, 20], id="the earliest of the most influential"),
        pytest.param(INFLUENCE, {"num_branch_points": 1}, [10], id="one"),
        pytest.param(INFLUENCE, {"top_frac": 0.6, "num_branch_points": 3}, [5, 10, 15], id="larger share"),
        pytest.param(FEW, {}, [15, 40], id="few positive values"),
    ],
)
def test_points_of_influence(influence, rule, points):
    assert np.quantile(INFLUENCE, 0.8) == pytest.approx(0.72) and np.quantile(FEW, 0.8) < 0.1
    assert chosen(response_features(TEN, influence=influence), **rule) == points


@pytest.mark.parametrize(
    ("distance", "points"),
    [
        (0, [10, 20]),
        (5, [10, 20]),  # between the end of step 2 (token 15) and the start of step 4 are 5 tokens
        (6, [5, 10]),  # step 4 is too near; the earliest other step fills up
        (21, [5, 20]),  # prompt (10) and response so far: step 2 begins at 20, step 4 at 30
        (31, [5, 10]),  # nothing is far enough from the beginning
    ],
)
def test_distances_count_the_prompt_and_end_where_a_step_starts(distance, points):
    assert chosen(response_features(TEN, influence=INFLUENCE), min_token_distance=distance) == points


def test_what_fills_up_when_too_few_steps_qualify():
    one = response_features(TEN, influence=[0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0], thinking=3)
    assert chosen(one, on_too_few=OnTooFew.FEWER) == [10]
    assert chosen(one, on_too_few=OnTooFew.FILL, num_branch_points=3) == [5, 10]  # steps 3… are not thinking
    assert chosen(one, on_too_few=OnTooFew.REPEAT, num_branch_points=3) == [5, 10, 15]
    short = response_features([5, 5], influence=[0, 0.5])
    assert choose_branch_points(
        short, BranchRule(num_branch_points=3, on_too_few=OnTooFew.REPEAT), np.random.default_rng(0)
    ) == [BranchPoint(5, 3)]


@pytest.mark.parametrize("criterion", [one for one in BranchCriterion if one not in BY_TOKEN])
@pytest.mark.parametrize("lengths", [[], [4]])
def test_a_response_of_one_step_or_none_is_not_branched(criterion, lengths):
    one = response_features(lengths, influence=[0.0] * len(lengths))
    for on_too_few in OnTooFew:
        assert chosen(one, criterion=criterion, on_too_few=on_too_few) == []


def test_earliest_random_and_uniform_steps():
    one = response_features(TEN)
    assert chosen(one, criterion=BranchCriterion.EARLIEST) == [5, 10]
    assert chosen(one, criterion=BranchCriterion.EARLIEST, min_token_distance=25) == [15, 45]
    assert chosen(one, criterion=BranchCriterion.UNIFORM) == [15, 35]  # steps 3 and 7 of 1 … 9
    drawn = {tuple(chosen(one, seed, criterion=BranchCriterion.RANDOM)) for seed in range(40)}
    assert len(drawn) > 15 and all(5 <= token <= 45 for pair in drawn for token in pair)


def test_uniform_steps_keep_their_distance_from_the_beginning():
    one = response_features([10] * 20, prompt=50)
    assert chosen(one, criterion=BranchCriterion.UNIFORM, min_token_distance=60) == [50, 150]


def test_without_any_influence_the_released_code_takes_spaced_steps():
    one = response_features([600, 600, 600, 600, 10], influence=[0.0] * 5, prompt=50)
    assert chosen(one, min_token_distance=512, on_too_few=OnTooFew.REPEAT) == [600, 1800]
    assert chosen(one, min_token_distance=512, on_too_few=OnTooFew.FEWER) == []


SURPRISAL = [9.0, 0.1, 0.5, 0.4, 8.0, 0.2]
"""Token 0 is the prompt's own."""
ENTROPIES = [9.0, 0.1, 0.5, 0.4, 0.2, 8.0]


@pytest.mark.parametrize(
    ("criterion", "scores", "known", "distance", "points"),
    [
        ("surprisal", SURPRISAL, {}, 0, [2, 4]),
        ("surprisal", SURPRISAL, {"thinking": 1}, 0, [1, 2]),
        ("surprisal", SURPRISAL, {"answer_token": 3}, 0, [1, 2]),
        ("surprisal", SURPRISAL, {}, 3, [1, 4]),
        ("surprisal", [], {}, 0, []),
        ("entropy", ENTROPIES, {}, 0, [2, 3]),
        ("entropy", ENTROPIES, {"thinking": 1, "answer_token": 1}, 0, [2, 3]),
        ("entropy", ENTROPIES, {}, 2, [2, 4]),
        ("entropy", [1.0], {}, 0, []),
        ("entropy", [], {}, 0, []),
    ],
)
def test_points_by_token(criterion, scores, known, distance, points):
    """The least probable ones come before the answer, those of most entropy are anywhere but at the ends."""
    lengths = [3, 3] if len(scores) == 6 else [1] * len(scores)
    one = response_features(lengths, token_scores=scores, **known)
    rule = {"criterion": BranchCriterion(criterion), "min_token_distance": distance}
    assert chosen(one, **rule) == points


def test_the_mean_takes_away_what_an_early_step_has_for_being_early():
    """Five steps, and every later one pays each of them 0.1: at a distance of 1 four, three, two, one and no
    step add up. What an even attention gives says nothing, so the one step with more is all there is."""
    sums = [0.4, 0.3, 0.2, 0.1, 0.0]
    assert aggregated_influence(sums, 1, FciAggregation.SUM) == tuple(sums)
    mean = aggregated_influence(sums, 1, FciAggregation.MEAN)
    assert mean == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.0])
    assert aggregated_influence(sums, 3, FciAggregation.MEAN) == pytest.approx([0.2, 0.3, 0.2, 0.1, 0.0])
    later = [0.0, 0.8, 0.7, 0.6, 0.5, 0.9, 0.3, 0.2, 0.1, 0.0]
    """Of ten steps; divided by 9, 8, …, 1 later ones, step 5 has 0.225, and no other one above 0.1."""
    found = aggregated_influence(later, 1, FciAggregation.MEAN)
    assert found == pytest.approx([0, 0.1, 0.1, 0.1, 0.1, 0.225, 0.1, 0.1, 0.1, 0.0])
    assert chosen(response_features(TEN, influence=later), num_branch_points=1) == [5]
    assert chosen(response_features(TEN, influence=found), num_branch_points=1, top_frac=0.1) == [25]


def test_other_steps_stand_apart_from_the_chosen_ones():
    one = response_features(TEN, influence=[0, 0.1, 0.9, 0.2, 0.3, 0.4, 0.1, 0, 0, 0])
    # At a distance of 15 from step 2 (tokens 10 to 14) only steps from 6 (token 30) on are free.
    rule = {"min_token_distance": 15, "on_too_few": OnTooFew.SPREAD}
    assert chosen(one, **rule) == [10, 30]
    assert chosen(one, num_branch_points=3, **rule) == [5, 25, 45], "three fit only without step 2"
    # Step 2 alone would be further away than all others, but the response has room for two points.
    tight = response_features([5] * 4, prompt=20, influence=[0, 0.1, 0.9, 0.1])
    assert chosen(tight, min_token_distance=5, on_too_few=OnTooFew.SPREAD) == [5, 15]
    assert chosen(tight, min_token_distance=5, on_too_few=OnTooFew.FEWER) == [10]


def test_missing_figures_are_refused():
    with pytest.raises(ValueError, match="0 values of influence for 10 steps"):
        chosen(response_features(TEN))
    for criterion in BY_TOKEN:
        with pytest.raises(ValueError, match=f"{criterion.value}: 1 scores for the 3 tokens"):
            chosen(response_features([3], token_scores=[1.0]), criterion=criterion)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"top_frac": 0.0}, "top_frac"),
        ({"top_frac": float("nan")}, "top_frac"),
        ({"min_token_distance": -1}, "min_token_distance"),
    ],
)
def test_rules_out_of_range_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        BranchRule(**rule)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0, 1)), min_size=1, max_size=20),
    st.sampled_from(BranchCriterion),
    st.sampled_from(OnTooFew),
    st.integers(1, 4),
    st.integers(0, 40),
    st.integers(0, 20),
)
def test_points_are_inside_the_response_and_at_steps(steps, criterion, on_too_few, count, distance, thinking):
    lengths = [length for length, _ in steps]
    total = sum(lengths)
    one = response_features(
        lengths,
        thinking=min(thinking, len(lengths)),
        influence=[value for _, value in steps],
        token_scores=np.random.default_rng(0).random(total).tolist(),
    )
    rule = BranchRule(
        criterion=criterion, num_branch_points=count, min_token_distance=distance, on_too_few=on_too_few
    )
    points = choose_branch_points(one, rule, np.random.default_rng(1))
    assert sum(point.times for point in points) <= count
    assert all(0 < point.token < total for point in points)
    assert len({point.token for point in points}) == len(points)
    if criterion not in BY_TOKEN:
        assert {point.token for point in points} <= {one.steps.start(step) for step in range(1, len(lengths))}


STEPS = st.lists(st.tuples(st.integers(1, 30), st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9])), max_size=20)


@given(
    STEPS, st.integers(1, 4), st.integers(0, 60), st.integers(0, 60), st.integers(0, 20), st.integers(0, 9)
)
def test_criteria_have_equally_many_points_where_they_stand_apart(
    steps, count, distance, prompt, thinking, seed
):
    """Whatever a criterion prefers: as many as the earliest steps, which are the most that fit."""
    one = response_features(
        [length for length, _ in steps],
        thinking=min(thinking, len(steps)),
        prompt=prompt,
        influence=[value for _, value in steps],
    )
    rule = {"num_branch_points": count, "min_token_distance": distance, "on_too_few": OnTooFew.SPREAD}
    found = {
        criterion: chosen(one, seed, criterion=criterion, **rule)
        for criterion in BranchCriterion
        if criterion not in BY_TOKEN
    }
    assert {len(points) for points in found.values()} == {len(found[BranchCriterion.EARLIEST])}
    ends = {one.steps.start(step): one.steps.ends[step] for step in range(len(one.steps))}
    for points in found.values():
        assert all(prompt + point >= distance for point in points)
        assert all(late - ends[early] >= distance for early, late in pairwise(points))


@given(STEPS, st.integers(1, 4), st.integers(0, 60))
def test_no_more_steps_stand_apart_than_are_found(steps, count, distance):
    """Control, by trying all sets of steps."""
    one = response_features([length for length, _ in steps[:9]], influence=[value for _, value in steps[:9]])

    def fits(places: tuple[int, ...]) -> bool:
        apart = all(
            one.steps.start(late) - one.steps.ends[early] >= distance for early, late in pairwise(places)
        )
        return apart and all(10 + one.steps.start(place) >= distance for place in places)

    able = range(1, len(one.steps))
    most = max(size for size in range(count + 1) if any(fits(one) for one in combinations(able, size)))
    found = chosen(one, num_branch_points=count, min_token_distance=distance, on_too_few=OnTooFew.SPREAD)
    assert len(found) == most
