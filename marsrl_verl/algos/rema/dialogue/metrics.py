"""What dialogues say of each agent, and of themselves, beside the figures that all methods have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marsrl_verl.algos.rema.dialogue.rewarding import ACCURACY, DONE, LEAK
from marsrl_verl.algos.rema.prompts import META_THINKING, ROLES
from marsrl_verl.core.group import Group
from marsrl_verl.core.trajectory import Trajectory


def dialogue_figures(groups: Sequence[Group]) -> dict[str, float]:
    """Of scored dialogues, seen by one agent or as a whole.

    Args:
        groups: of one role, or of the stage. A group of a role has that role; the stage's the first one's,
            with the sequences of both.
    """
    members = [one for group in groups for one in group.trajectories if one.comparable]
    if not members:
        return {}
    found = {
        "accuracy": _mean(members, lambda one: float(one.scored.info.get(ACCURACY, 0.0))),
        "finished_share": _mean(members, lambda one: bool(one.scored.info.get(DONE))),
        "turns": _mean(members, turns),
    }
    for reason in sorted({end_of(one) for one in members}):
        found[f"end/{reason}"] = _mean(members, lambda one: end_of(one) == reason)  # noqa: B023
    roles = {sequence.role for one in members for sequence in one.sequences}
    events = [
        event for one in members for event in messages(one) if len(roles) != 1 or event["role"] in roles
    ]
    if events:
        found |= _message_figures(events)
    leaks = [bool(one.scored.info[LEAK]) for one in members if LEAK in one.scored.info]
    if leaks and roles == {META_THINKING}:
        found["leak_share"] = sum(leaks) / len(leaks)
    return found


def _message_figures(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    found = {
        "empty_message_share": sum(bool(event["empty"]) for event in events) / len(events),
        "same_message_share": sum(event["same"] > 1 for event in events) / len(events),
        "cut_message_share": sum(bool(event["cut"]) for event in events) / len(events),
    }
    lengths = [event["tokens"] for event in events if event["tokens"] is not None]
    if lengths:
        found["message_length_mean"] = sum(lengths) / len(lengths)
    return found


def _mean(members: Sequence[Trajectory], measure: Callable[[Trajectory], float]) -> float:
    return sum(measure(one) for one in members) / len(members)


def messages(one: Trajectory) -> list[dict[str, Any]]:
    """The events that are messages."""
    return [event for event in one.events if event.get("role") in ROLES]


def turns(one: Trajectory) -> int:
    """Turns that the reasoning agent answered."""
    return next((int(event["turns"]) for event in reversed(one.events) if "turns" in event), 0)


def end_of(one: Trajectory) -> str:
    """Why the dialogue ended."""
    return next((str(event["end"]) for event in reversed(one.events) if "end" in event), one.finish.value)
