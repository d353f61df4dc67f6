"""ARPO (arXiv 2507.19849): an agent with tools whose trajectories branch after tool calls."""

METHOD = "marsrl_verl.algos.arpo.method:ARPO"
