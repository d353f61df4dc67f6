"""The suite of AttnRL: what its trees differ in."""

from __future__ import annotations

from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.suite import load_suite
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config


def test_trees_differ_in_where_they_branch_and_have_as_many_responses_as_groups(tmp_path):
    runs = plan_runs(load_suite("attnrl"), 1, tmp_path)
    found = {run.method: compose_config(parse_arguments(list(run.overrides))).config for run in runs}
    grpo, *trees = (dict(one.marsrl.algo) for one in found.values())
    where = [tuple(one.pop(key) for key in ("criterion", "fci_aggregation", "top_share")) for one in trees]
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
