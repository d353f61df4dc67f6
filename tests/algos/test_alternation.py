"""Policies that take turns: whose a step is, and where nobody can."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from marsrl_verl.core.alternation import Alternation, AlternationConfig

ROLES = ("plan", "solve")
POLICIES = {"plan": "planner", "solve": "solver"}
KEY = "marsrl.algo.alternate"


def turns(**settings) -> Alternation:
    found = Alternation.of(AlternationConfig(enabled=True, **settings), ROLES, POLICIES)
    assert found is not None
    return found


def test_the_first_turn_is_as_long_as_the_others():
    """Steps begin at 1: with turns of three they are 1-3, 4-6, 7-9."""
    found = [turns(interval=3).due(step) for step in range(1, 10)]
    assert found == ["planner"] * 3 + ["solver"] * 3 + ["planner"] * 3
    assert [turns(interval=1).due(step) for step in (1, 2, 3)] == ["planner", "solver", "planner"]


def test_ten_steps_are_the_default_and_any_role_can_be_first():
    found = turns(first="solve")
    assert [found.due(step) for step in (1, 10, 11, 20, 21)] == [
        "solver", "solver", "planner", "planner", "solver",
    ]  # fmt: skip


def test_roles_of_one_policy_have_one_turn():
    config = AlternationConfig(enabled=True, interval=1)
    three = ("plan", "solve", "check")
    found = Alternation.of(config, three, {"plan": "a", "solve": "b", "check": "a"})
    assert [found.due(step) for step in (1, 2, 3)] == ["a", "b", "a"]


def test_all_are_trained_where_it_is_off():
    assert Alternation.of(AlternationConfig(), ROLES, POLICIES) is None


def run(policies, frozen=()):
    settings = SimpleNamespace(policy_of=policies.__getitem__)
    return SimpleNamespace(settings=settings, frozen_roles=dict.fromkeys(frozen, "far away"))


@pytest.mark.parametrize(
    ("policies", "frozen", "settings", "key", "what"),
    [
        ({"plan": "policy", "solve": "policy"}, (), {}, "enabled", "have one policy (policy)"),
        (POLICIES, ("plan",), {}, "enabled", "have one policy (solver)"),
        (POLICIES, (), {"first": "solver"}, "first", "Expected"),
    ],
)
def test_turns_that_nobody_can_take_are_refused(policies, frozen, settings, key, what):
    config = AlternationConfig(enabled=True, **settings)
    (issue,) = config.checks(run(policies, frozen), KEY, ROLES)
    assert issue.key == f"{KEY}.{key}"
    assert what in str(issue.what) or key == "first"


def test_turns_that_can_be_taken_pass():
    assert list(AlternationConfig(enabled=True, first="solve").checks(run(POLICIES), KEY, ROLES)) == []
    assert list(AlternationConfig().checks(run({"plan": "a", "solve": "a"}), KEY, ROLES)) == []
