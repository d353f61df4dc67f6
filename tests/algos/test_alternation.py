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


@pytest.mark.parametrize(
    ("settings", "steps", "due"),
    [
        pytest.param({"interval": 3}, range(1, 10), "ppp sss ppp", id="the first is as long as the others"),
        pytest.param({"interval": 1}, range(1, 4), "psp", id="one step each"),
        pytest.param({"first": "solve"}, (1, 10, 11, 20, 21), "ss pp s", id="ten steps, another first"),
    ],
)
def test_turns(settings, steps, due):
    """Steps begin at 1."""
    assert "".join(turns(**settings).due(step)[0] for step in steps) == due.replace(" ", "")


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
