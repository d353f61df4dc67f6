"""The suite of AttnRL and its parts."""

from __future__ import annotations

from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.suite import load_suite
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config


def test_branching_with_and_without_influence_differs_in_nothing_else(tmp_path):
    """`apart` gives every criterion the same number of points (tests/algos/attnrl/test_branch_points.py)."""
    runs = {run.method: run for run in plan_runs(load_suite("attnrl"), 1, tmp_path)}
    found = []
    for name in ("attnrl_spaced", "spaced_without_fci"):
        config = compose_config(parse_arguments(list(runs[name].overrides))).config
        found.append(dict(config.marsrl.algo))
    assert [one.pop("criterion") for one in found] == ["fci", "earliest"]
    assert found[0] == found[1]
    assert (found[0]["shortfall"], found[0]["min_token_distance"]) == ("apart", 3)
