"""The suites of ARPO: the same methods on two budgets."""

from __future__ import annotations

from launching import settings

from marsrl_verl.compare.suite import TOKENS, TOOL_CALLS, load_suite


def test_both_suites_compare_the_same_methods():
    calls, tokens = load_suite("arpo"), load_suite("arpo_tokens")
    assert (calls.budget.quantity, tokens.budget.quantity) == (TOOL_CALLS, TOKENS)
    assert (calls.methods, calls.overrides) == (tokens.methods, tokens.overrides)


def test_methods_differ_in_their_forks_alone():
    found = {}
    for method, config in settings("arpo").items():
        assert (config.marsrl.run.max_tool_calls, config.marsrl.run.max_generated_tokens) == (4000, None)
        found[method] = dict(config.marsrl.algo)
    random, entropy = found["random_forks"]["branching"], found["arpo"]["branching"]
    assert (random["base_probability"], entropy["base_probability"]) == (0.6, 0.5)
    laws = {name: dict(algo.pop("branching")) for name, algo in found.items()}
    assert [law["law"] for law in laws.values()] == ["off", "random", "threshold"]
    assert found["grpo_tools"] == found["random_forks"] == found["arpo"]


def test_the_search_differs_from_the_suites_where_it_says_so():
    """In the rate, in how often it evaluates, and in the probability of forks at random."""
    suite, search = load_suite("arpo"), load_suite("arpo_rates")
    rate = "actor_rollout_ref.actor.optim.lr"
    assert search.grid is not None and search.grid.setting == rate
    assert set(suite.overrides) ^ set(search.overrides) == {
        f"{rate}=0.001", "marsrl.evaluation.every=2", "marsrl.evaluation.every=3"
    }  # fmt: skip
    at = {name: search.methods[search.grid.name(name, "0.001")] for name in suite.methods}
    other = {name: set(suite.methods[name]) ^ (set(at[name]) - {f"{rate}=0.001"}) for name in at}
    probability = "marsrl.algo.branching.base_probability"
    forks = {f"{probability}=0.6", f"{probability}=0.3"}
    assert other == {"grpo_tools": set(), "random_forks": forks, "arpo": set()}
    assert suite.budget == search.budget
