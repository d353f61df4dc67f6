"""The suites of ARPO: the same methods on two budgets."""

from __future__ import annotations

from marsrl_verl.compare.plan import plan_runs
from marsrl_verl.compare.suite import TOKENS, TOOL_CALLS, load_suite
from marsrl_verl.config.command_line import parse_arguments
from marsrl_verl.config.compose import compose_config


def test_both_suites_compare_the_same_methods():
    calls, tokens = load_suite("arpo"), load_suite("arpo_tokens")
    assert (calls.budget.quantity, tokens.budget.quantity) == (TOOL_CALLS, TOKENS)
    assert (calls.methods, calls.overrides) == (tokens.methods, tokens.overrides)


def test_methods_differ_in_their_forks_alone(tmp_path):
    found = {}
    for run in plan_runs(load_suite("arpo"), 1, tmp_path):
        config = compose_config(parse_arguments(list(run.overrides))).config
        assert (config.marsrl.run.max_tool_calls, config.marsrl.run.max_generated_tokens) == (4000, None)
        found[run.method] = dict(config.marsrl.algo)
    laws = {name: dict(algo.pop("branching")) for name, algo in found.items()}
    assert [law["law"] for law in laws.values()] == ["off", "random", "threshold"]
    assert found["grpo_tools"] == found["random_forks"] == found["arpo"]
