import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.evaluation.estimators import (
    Estimate,
    Observations,
    difference,
    estimate,
    mean_estimate,
    student_quantile,
    wilson_interval,
)


def single(successes: int, total: int, prefix: str = "p") -> Observations:
    return Observations.of((i < successes, f"{prefix}{i}") for i in range(total))


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 1, 0.2065, 1.0)],
)
def test_one_observation_per_problem_gives_wilsons_interval(successes, total, low, high):
    found = estimate(single(successes, total))
    assert found.mean == successes / total
    assert found.n == total
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


def test_a_mean_over_single_observations_has_students_interval():
    # 1, 2, 3, 6: mean 3, sample variance 14/3, standard error sqrt(14/12); t with 3 degrees: 3.182
    found = mean_estimate([(1.0, "a"), (2.0, "b"), (3.0, "c"), (6.0, "d")])
    assert (found.mean, found.n) == (3.0, 4)
    half = 3.182 * (14 / 12) ** 0.5
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half), rel=0.01)


def test_repeats_of_a_problem_do_not_narrow_a_mean():
    once = [(1.0, "a"), (2.0, "b"), (6.0, "c")]
    single, repeated = mean_estimate(once), mean_estimate(once * 5)
    assert repeated.n == 15
    assert (repeated.mean, repeated.low, repeated.high) == pytest.approx(
        (single.mean, single.low, single.high)
    )


def test_a_mean_without_spread_over_problems_has_no_interval():
    assert mean_estimate([]) == Estimate(None, None, None, 0)
    assert mean_estimate([(1.0, "a"), (3.0, "a")]) == Estimate(2.0, None, None, 2)


def test_nothing_observed_gives_none():
    empty = Observations((), ())
    assert estimate(empty) == Estimate(None, None, None, 0)
    assert difference(empty, single(1, 2)) == Estimate(None, None, None, 0)
    assert difference(single(1, 2), empty) == Estimate(None, None, None, 0)
    assert estimate(empty).to_json() == {"mean": None, "low": None, "high": None, "n": 0}


def test_clustered_interval_by_hand():
    # Problems a: 1 1, b: 1 0, c: 0 0, d: 1 0. p = 1/2; summed residuals 1, 0, -1, 0.
    # v = 4/3 * (1 + 1) / 64 = 1/24; effective size 0.25 * 24 * (1.95996 / 3.18245)^2 = 2.2757.
    found = estimate(Observations.of(zip([1, 1, 1, 0, 0, 0, 1, 0], "aabbccdd", strict=True)))
    low, high = wilson_interval(0.5, 2.2757)
    assert (found.mean, found.n) == (0.5, 8)
    assert found.low == pytest.approx(low, abs=2e-3)
    assert found.high == pytest.approx(high, abs=2e-3)


def test_repeats_that_agree_count_as_one():
    copied = Observations.of((i % 2 == 0, f"p{i}") for i in range(40) for _ in range(5))
    once = Observations.of((i % 2 == 0, f"p{i}") for i in range(40))
    assert estimate(copied).high == pytest.approx(estimate(once).high, abs=0.01)


def test_unanimous_repeats_are_as_sure_as_the_number_of_problems():
    found = estimate(Observations.of((True, f"p{i % 10}") for i in range(50)))
    assert (found.low, found.high) == wilson_interval(1.0, 10)


def test_one_problem_is_one_observation():
    found = estimate(Observations((True, False, True), ("a", "a", "a")))
    assert (found.low, found.high) == wilson_interval(2 / 3, 1)


# Student's t table, two-sided 95 %.
@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (30, 2.042)],
)
def test_student_quantiles_are_those_of_the_table(freedom, expected):
    assert student_quantile(0.95, freedom) == pytest.approx(expected, rel=2e-3)


def test_student_quantile_of_another_coverage():
    assert student_quantile(0.99, 2) == pytest.approx(9.925, abs=1e-3)


@pytest.mark.parametrize(("confidence", "freedom"), [(1.0, 2), (0.0, 2), (0.95, 0)])
def test_impossible_student_quantiles_are_refused(confidence, freedom):
    with pytest.raises(ValueError, match=r"confidence must lie between 0 and 1|1 degree of freedom or more"):
        student_quantile(confidence, freedom)


@pytest.mark.parametrize("bad", [0.0, 1.0, 95])
def test_confidence_is_checked(bad):
    with pytest.raises(ValueError, match="confidence"):
        estimate(single(1, 2), bad)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh")), min_size=1, max_size=60))
def test_interval_holds_the_mean_and_stays_in_range(pairs):
    found = estimate(Observations.of(pairs))
    assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    wider = estimate(Observations.of(pairs), 0.99)
    assert wider.low <= found.low and wider.high >= found.high
    best = wilson_interval(found.mean, found.n)
    assert found.low <= best[0] + 1e-12 and found.high >= best[1] - 1e-12


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), min_size=1, max_size=40), st.randoms())
def test_order_does_not_matter(pairs, random):
    shuffled = pairs[:]
    random.shuffle(shuffled)
    first, second = estimate(Observations.of(pairs)), estimate(Observations.of(shuffled))
    assert first.low == pytest.approx(second.low) and first.high == pytest.approx(second.high)


@pytest.mark.parametrize(("problems", "repeats"), [(60, 4), (200, 1)])
def test_coverage_of_numbers_between_no_and_yes(problems, repeats):
    """Such as F1: many zeros and ones, and some in between."""
    rng, trials, names = np.random.default_rng(11), 1000, [f"p{i}" for i in range(problems)] * repeats
    values = np.array([0.0, 0.0, 0.4, 0.5, 2 / 3, 1.0])
    held, widths = 0, []
    for _ in range(trials):
        drawn = rng.choice(values, size=problems)
        noise = rng.choice(values, size=(repeats, problems))
        outcomes = np.where(rng.random((repeats, problems)) < 0.5, drawn, noise).reshape(-1)
        found = estimate(Observations(tuple(outcomes.tolist()), tuple(names)))
        held += found.low <= values.mean() <= found.high
        widths.append(found.high - found.low)
    assert 0.93 <= held / trials <= 0.97
    if repeats == 1:  # 2 z s / sqrt(n), where yes and no of the same mean would have s = 0.4936
        assert np.mean(widths) == pytest.approx(2 * 1.96 * values.std() / 200**0.5, rel=0.02)


def test_numbers_that_are_all_alike():
    found = estimate(Observations((0.5, 0.5, 0.5), ("a", "b", "c")))
    assert (found.low, found.high) == wilson_interval(0.5, 3)


def test_difference_of_unrelated_problems_is_newcombes():
    """Newcombe (1998), 56/70 against 48/80: 0.2, interval 0.0524 to 0.3339."""
    found = difference(single(48, 80, "x"), single(56, 70, "y"))
    assert found.mean == pytest.approx(0.2)
    assert found.low == pytest.approx(0.0524, abs=1e-4)
    assert found.high == pytest.approx(0.3339, abs=1e-4)
    assert found.n == 0


def test_difference_uses_the_pairing():
    before = Observations.of((i < 30, f"p{i}") for i in range(60))
    after = Observations.of((i < 36, f"p{i}") for i in range(60))
    mixed = Observations.of((i >= 24, f"p{i}") for i in range(60))
    paired, crossed = difference(before, after), difference(before, mixed)
    assert paired.mean == pytest.approx(0.1) and crossed.mean == pytest.approx(0.1)
    assert paired.n == 60
    assert paired.low > 0 > crossed.low


def test_no_change_is_no_change():
    some = single(13, 40)
    found = difference(some, some)
    assert found.mean == 0.0
    assert found.low <= 0.0 <= found.high


@pytest.mark.parametrize(
    ("low", "high", "sign"), [(0.1, 0.3, 1), (-0.3, -0.1, -1), (-0.1, 0.2, 0), (0.0, 0.2, 0), (None, None, 0)]
)
def test_the_sign_of_a_difference(low, high, sign):
    assert Estimate(0.1, low, high, 40).sign == sign


def test_few_observations():
    assert [Estimate(0.5, 0.4, 0.6, n).few for n in (0, 1, 29, 30)] == [False, True, True, False]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="one length, found 2 and 1"):
        Observations((True, False), ("a",))


def test_numbers_of_any_size_have_an_interval_of_the_same_shape():
    values = [(1.0, "a"), (2.0, "b"), (4.0, "c"), (0.0, "d")]
    plain, tiny = mean_estimate(values), mean_estimate([(1e-100 * value, name) for value, name in values])
    assert (tiny.low, tiny.high) == pytest.approx((1e-100 * plain.low, 1e-100 * plain.high), rel=1e-9)
