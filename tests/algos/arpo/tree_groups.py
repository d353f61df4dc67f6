"""Groups of scripted agents."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from marsrl_verl.algos.arpo.config import BranchingConfig, Config
from marsrl_verl.algos.arpo.rollout import PROGRAM
from marsrl_verl.core.request import Problem, RolloutRequest


def config(**more: Any) -> Config:
    branching = {"entropy_tokens": 4, "top_log_probs": 2, **more.pop("branching", {})}
    return Config(**{"group_size": 8, "result_tokens": 60, "branching": BranchingConfig(**branching), **more})


def runner_settings(one: Config, tools: Any, **more: Any) -> dict[str, Any]:
    """What a runner is given beside its client."""
    return {"settings": SimpleNamespace(algo=one), "tools": tools, **more}


def agent_request(n: int = 8, **more: Any) -> RolloutRequest:
    messages = ({"role": "user", "content": "1+1"},)
    problem = Problem("p1", "1+1", "2")
    return RolloutRequest("p1/agent/0", problem, "agent", "solver", messages, n, PROGRAM, **more)
