"""Figures of agents and their trees, from what their trajectories say happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from marsrl_verl.core.group import Group
from marsrl_verl.core.trajectory import FinishReason, Trajectory, is_correct
from marsrl_verl.rollout.agent_loop import CALL_LIMIT

_OUTCOMES = ("ok", "error", "timeout", "failed", "refused")
_CHANGES = (-0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2)
"""Edges of the histogram of entropy changes."""
ROOTS = "roots"
"""Input of a request: how many of its trajectories begin at the prompt, whatever forks leave."""


def executed(one: Trajectory) -> list[Mapping[str, Any]]:
    """The calls that a trajectory made itself and that ran; those before its fork are another one's."""
    return [event for event in one.events if event.get("executed") and event.get("by") == one.number]


def agent_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The figures of scored groups by name; what was not observed is absent."""
    members = [one for group in groups for one in group.trajectories]
    if not members:
        return {}
    return _calls(groups, members) | _tree(groups, members) | _decisions(members)


def _calls(groups: Sequence[Group], members: Sequence[Trajectory]) -> dict[str, float]:
    calls = [event for one in members for event in one.events if event.get("by") == one.number]
    ran = [event for one in members for event in executed(one)]
    right = sum(is_correct(one.value) for one in members if one.reward is not None)
    found: dict[str, float] = {
        "executed_calls": len(ran),
        "executed_calls_per_group": len(ran) / len(groups),
        "calls_per_trajectory": sum(len(one.events) for one in members) / len(members),
        "using_tools_share": sum(any(event.get("executed") for event in one.events) for one in members)
        / len(members),
        "call_limit_share": sum(
            one.finish is FinishReason.LIMIT and one.detail == CALL_LIMIT for one in members
        )
        / len(members),
    }
    if right:
        found["executed_calls_per_right"] = len(ran) / right
    if calls:
        outcomes = Counter(event["outcome"] for event in calls)
        found |= {f"call_outcome/{name}": outcomes[name] / len(calls) for name in _OUTCOMES}
        found["cut_result_share"] = sum(event["cut"] or event["truncated"] for event in calls) / len(calls)
        found["result_tokens_mean"] = float(np.mean([event["tokens"] for event in calls]))
    for name, count in sorted(Counter(event["tool"] for event in ran).items()):
        found[f"executed_calls/{name}"] = count
    if ran:
        seconds = [event["seconds"] for event in ran]
        found["call_seconds_p50"] = float(np.percentile(seconds, 50))
        found["call_seconds_p95"] = float(np.percentile(seconds, 95))
        found["call_waited_seconds_p95"] = float(np.percentile([event["waited"] for event in ran], 95))
    return found


def _tree(groups: Sequence[Group], members: Sequence[Trajectory]) -> dict[str, float]:
    forks = [one for one in members if one.fork is not None]
    depth = _depths(members)
    sampled = [sum(map(_own_tokens, group.trajectories)) for group in groups]
    rows = sum(sequence.trained_tokens for one in members for sequence in one.sequences)
    further = sum(
        one.fork is None and one.number >= int(group.request.inputs.get(ROOTS, group.request.n))  # type: ignore[arg-type]
        for group in groups
        for one in group.trajectories
    )
    found: dict[str, float] = {
        "roots_per_group": (len(members) - len(forks) - further) / len(groups),
        "forks_per_group": len(forks) / len(groups),
        "further_roots_per_group": further / len(groups),
        "fork_depth_mean": float(np.mean([depth[one.trajectory_id] for one in members])),
        "fork_depth_max": max(depth.values()),
    }
    if rows:
        found["shared_token_share"] = 1 - sum(sampled) / rows
    return found


def _own_tokens(one: Trajectory) -> int:
    """Tokens that the policy chose in this trajectory, not in the one that it left."""
    begin = 0 if one.fork is None else one.fork.token
    return sum(int(sequence.response_mask[begin:].sum()) for sequence in one.sequences)


def _depths(members: Iterable[Trajectory]) -> dict[str, int]:
    """By trajectory: forks on the way to it."""
    found: dict[str, int] = {}
    for one in sorted(members, key=lambda one: (one.group_id, one.number)):
        found[one.trajectory_id] = 0 if one.fork is None else found.get(one.fork.trajectory_id, 0) + 1
    return found


def _decisions(members: Sequence[Trajectory]) -> dict[str, float]:
    """Of the results after which a fork was decided about."""
    decided = [
        event
        for one in members
        for event in one.events
        if event.get("by") == one.number and "forks_wanted" in event
    ]
    if not decided:
        return {}
    requested = sum(int(event["forks_wanted"]) for event in decided)
    forks = sum(one.fork is not None for one in members)
    found = {
        "fork_decisions": float(len(decided)),
        "fork_wanted_share": sum(event["forks_wanted"] > 0 for event in decided) / len(decided),
        "fork_granted_share": forks / requested if requested else 0.0,
    }
    if chances := [event["fork_probability"] for event in decided if event["fork_probability"] is not None]:
        found["fork_probability_mean"] = float(np.mean(chances))
    changes = [event["entropy_change"] for event in decided if event["entropy_change"] is not None]
    if changes:
        found["entropy_change_mean"] = float(np.mean(changes))
        found["entropy_change_std"] = float(np.std(changes))
        found["entropy_rises_share"] = sum(change > 0 for change in changes) / len(changes)
        places = Counter(int(np.searchsorted(_CHANGES, change, side="left")) for change in changes)
        for place in range(len(_CHANGES) + 1):
            found[f"entropy_change/{_bin(place)}"] = places[place] / len(changes)
    return found


def _bin(place: int) -> str:
    """The name of a bin, by its upper edge."""
    return f"to_{_CHANGES[place]:g}" if place < len(_CHANGES) else f"above_{_CHANGES[-1]:g}"
