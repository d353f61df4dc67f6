"""The suite of AttnRL: what its trees differ in."""

from __future__ import annotations

import pytest
from launching import settings


@pytest.mark.with_presets("grpo")
def test_trees_differ_in_where_they_branch_and_have_as_many_responses_as_groups():
    found = settings("attnrl")
    grpo, *trees = (dict(one.marsrl.algo) for one in found.values())
    where = [tuple(one.pop(key) for key in ("criterion", "fci_aggregation", "top_frac")) for one in trees]
    assert where == [
        ("random", "sum", 0.2),
        ("earliest", "sum", 0.2),
        ("entropy", "sum", 0.2),
        ("fci", "sum", 0.2),
        ("fci", "mean", 0.08),
    ]
    assert all(one == trees[0] for one in trees)
    whole = trees[0]["group_size"]
    assert whole + 2 * trees[0]["num_branch_points"] * whole == grpo["group_size"] == 30
    clips = {one.actor_rollout_ref.actor.clip_ratio_high for one in found.values()}
    assert clips == {0.28}
