"""A run of agents that logs all of their metrics."""

from __future__ import annotations

from typing import Any

from agent_scripts import FakeTools, call
from scripted_engine import Reply

from marsrl_verl.core.request import RolloutRequest

SETTINGS = (
    "algo=arpo",
    "+marsrl.tools.python.target=python",
    "marsrl.algo.branching.entropy_tokens=4",
    "marsrl.algo.call_limit=2",
    "marsrl.roles.solver.max_new_tokens=300",
)


def script(item: RolloutRequest, k: int) -> Reply:
    """One call, some two, and answers of which most are right. Results are as long as they are here."""
    one = f"<think>a</think>{call('python', '1')} <result>\n1\n</result>"
    two = (
        f"<think>b{k}</think>{call('python', '22')} <result>\n2\n</result>"
        if k % 2
        else f"<think>c{k}</think>"
    )
    answer = item.problem.ground_truth if (k + len(item.problem.question)) % 3 else "0"
    return Reply(f"{one}{two}<answer>\\boxed{{{answer}}}</answer>")


def runner(settings: Any) -> dict[str, Any]:
    """What the rollouts are given."""
    return {"settings": settings, "tools": FakeTools(("python",))}
