"""Named sets of weights: which role uses which, and their versions."""

from __future__ import annotations

import pytest

from marsrl_verl.core.policy import Policy, PolicyKind, PolicySet

TWO = (Policy("meta"), Policy("reason"))
MIXED = (
    Policy("base"), Policy("adapter", PolicyKind.LORA),
    Policy("judge", PolicyKind.ENDPOINT), Policy("file", PolicyKind.JSONL),
)  # fmt: skip


def test_one_policy_is_every_roles_and_its_version_is_the_step():
    policies = PolicySet()
    assert policies.of("solver") == policies.of("anything") == Policy()
    assert policies.version("shared") == 0
    for step in (1, 2, 5):
        policies.updated(policies.trained, step)
        assert policies.version("shared") == step


def test_frozen_policies_have_no_version_and_are_never_trained():
    roles = {"solver": "judge", "verifier": "adapter", "corrector": "base", "rater": "file"}
    policies = PolicySet(MIXED, roles)
    assert policies.trained == ("adapter", "base")
    assert [policies.of(role).trained for role in roles] == [False, True, True, False]
    assert policies.version("judge") == 0
    with pytest.raises(ValueError, match="policy 'judge' can't be trained, those that can: adapter, base"):
        policies.updated({"judge"}, 1)


def test_policies_take_turns_and_keep_their_versions():
    policies = PolicySet(TWO, {"planner": "meta", "solver": "reason"})
    policies.updated({"meta"}, 1)
    policies.updated({"meta"}, 2)
    policies.updated({"reason"}, 3)
    assert (policies.version("meta"), policies.version("reason")) == (2, 3)
    policies.updated(set(), 4)
    policies.updated({"meta", "reason"}, 5)
    assert (policies.version("meta"), policies.version("reason")) == (5, 5)


def test_a_resumed_run_goes_on_with_its_versions():
    policies = PolicySet(TWO)
    policies.updated({"meta"}, 4)
    again, state = PolicySet(TWO[::-1]), policies.state_dict()
    again.load_state_dict(state)
    assert (again.version("meta"), again.version("reason")) == (4, 0)
    again.updated({"reason"}, 5)
    assert policies.version("reason") == 0 and state == {"versions": {"meta": 4, "reason": 0}}
    with pytest.raises(
        ValueError, match=r"versions of the policies \['meta', 'reason'\], this run trains \['shared'\]"
    ):
        PolicySet().load_state_dict(state)


def test_an_error_changes_no_version():
    policies = PolicySet(TWO)
    policies.updated({"meta"}, 3)
    with pytest.raises(ValueError, match="policy 'meta' has version 3, step 3 is not newer"):
        policies.updated({"reason", "meta"}, 3)
    with pytest.raises(ValueError, match="'third' can't be trained"):
        policies.updated({"reason", "third"}, 4)
    assert policies.version("reason") == 0


@pytest.mark.parametrize(
    ("policies", "roles", "message"),
    [
        ((), {}, "policies need distinct names"),
        ((Policy(), Policy()), {}, r"policies need distinct names, found \['shared', 'shared'\]"),
        (TWO, {"solver": "mata"}, "role solver names the policy 'mata', known: meta, reason"),
    ],
)
def test_names_that_fit_nothing_are_refused(policies, roles, message):
    with pytest.raises(ValueError, match=message):
        PolicySet(policies, roles)


def test_a_role_without_a_policy_is_named_where_there_are_several():
    policies = PolicySet(TWO, {"planner": "meta"})
    with pytest.raises(
        ValueError, match="role 'solver' has no policy; roles with one: planner; policies: meta, reason"
    ):
        policies.of("solver")
    with pytest.raises(ValueError, match="there is no policy 'third', known: meta, reason"):
        policies.version("third")


def test_a_role_without_a_policy_has_the_only_one_with_weights():
    policies = PolicySet((Policy("own"), Policy("judge", PolicyKind.ENDPOINT)), {"rater": "judge"})
    assert policies.of("solver").name == "own" and policies.of("rater").name == "judge"
