"""Phases in turns, and the problems that each of them keeps."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.single_turn.config import Config, FilterConfig
from marsrl_verl.algos.rema.single_turn.filtering import Phases, SuccessFilter
from marsrl_verl.settings.rules import RuleError


def walk(phases: Phases, epochs: int) -> list[tuple[str, bool, int]]:
    found = []
    for _ in range(epochs):
        found.append((phases.role, phases.filtering, phases.episode))
        phases.next_epoch()
    return found


def phases_of(roles, episodes, filtered=True, iterations=None) -> Phases:
    filtering = FilterConfig(enabled=filtered)
    return Phases(Config(train_roles=list(roles), episodes=episodes, filter=filtering, iterations=iterations))


def between(lowest: float, highest: float, **more) -> SuccessFilter:
    return SuccessFilter(FilterConfig(lowest=lowest, highest=highest, **more))


def test_the_low_phase_comes_first_and_each_begins_with_a_pass_that_counts():
    phases = phases_of(("reasoning", "meta_thinking"), episodes=2, iterations=2)
    low = [("reasoning", True, 0), ("reasoning", False, 1), ("reasoning", False, 2)]
    high = [("meta_thinking", *rest) for _, *rest in low]
    assert walk(phases, 12) == [*low, *high] * 2
    assert phases.left == -1, "the last epoch is over"


def test_without_a_filter_every_epoch_trains():
    phases = phases_of(("reasoning",), episodes=3, filtered=False, iterations=1)
    assert walk(phases, 3) == [("reasoning", False, number) for number in (1, 2, 3)]


@given(
    roles=st.sampled_from([("a",), ("a", "b")]),
    episodes=st.integers(1, 5),
    filtered=st.booleans(),
    iterations=st.integers(1, 4),
)
def test_every_role_has_its_passes_and_no_more(roles, episodes, filtered, iterations):
    phases = phases_of(roles, episodes, filtered, iterations)
    total = phases.left + 1
    begins, lefts = [], []
    for _ in range(total):
        lefts.append(phases.left)
        begins.append(phases.next_epoch())
    assert lefts == list(range(total))[::-1]
    assert sum(begins) == iterations * len(roles)
    again = phases_of(roles, episodes, filtered, iterations)
    trained = [role for role, filtering, _ in walk(again, total) if not filtering]
    assert [trained.count(role) for role in roles] == [iterations * episodes] * len(roles)


@example(lowest=2, highest=8, samples=10)
@given(lowest=st.integers(0, 10), highest=st.integers(0, 10), samples=st.integers(1, 40))
def test_a_rate_that_is_a_bound_is_kept(lowest, highest, samples):
    """Of ten samples and the paper's bounds 2 and 8 that is 2 to 8."""
    found = between(lowest / 10, highest / 10)
    for successes in range(samples + 1):
        found.note(str(successes), successes, samples)
    kept = [one for one in range(samples + 1) if found.keeps(str(one))]
    assert kept == [one for one in range(samples + 1) if lowest * samples <= 10 * one <= highest * samples]


def test_a_problem_without_a_sample_is_not_kept():
    found = between(0.0, 1.0)
    assert not found.keeps("never asked")
    found.note("failed", 0, 0)
    assert not found.keeps("failed")
    with pytest.raises(ValueError, match="problem p: found 3 successes in 2 samples"):
        found.note("p", 3, 2)


def test_counts_add_up_and_survive_a_checkpoint():
    found = between(0.2, 0.8)
    found.note("p", 1, 4)
    found.note("p", 2, 6)
    again = between(0.2, 0.8)
    again.load_state_dict(json.loads(json.dumps(found.state_dict())))
    assert again == found and again.counts == {"p": [3, 10]}
    assert again.keeps("p")


def test_metrics_say_how_much_is_left():
    found = between(0.2, 0.8)
    assert found.metrics() == {"filter/problems": 0.0, "filter/kept": 0.0}
    for name, successes in (("a", 0), ("b", 5), ("c", 10), ("d", 8)):
        found.note(name, successes, 10)
    assert found.metrics() == {
        "filter/problems": 4.0,
        "filter/kept": 2.0,
        "filter/success_rate": 0.575,
        "filter/always_solved_frac": 0.25,
        "filter/never_solved_frac": 0.25,
    }


OWN = """
def some(successes, samples):
    return 0 < successes < samples

def rate(successes, samples):
    return successes / samples
"""


def test_a_function_of_the_user_s_says_which_problems_are_kept(tmp_path, monkeypatch):
    (tmp_path / "own_filter.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = between(0.2, 0.8, rule="own_filter:some")
    for successes in range(11):
        found.note(str(successes), successes, 10)
    found.note("never asked", 0, 0)
    assert [name for name in found.counts if found.keeps(name)] == [str(one) for one in range(1, 10)]
    assert found.metrics()["filter/kept"] == 9
    wrong = between(0.2, 0.8, rule="own_filter:rate")
    wrong.note("a", 1, 4)
    with pytest.raises(
        RuleError, match=r"filter.rule = own_filter:rate returned 0.25; expected True or False"
    ):
        wrong.keeps("a")
