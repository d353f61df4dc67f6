"""The turns of a trajectory: messages of agents, or what an agent wrote and read between its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
Place = tuple[int | None, int | None]
NOWHERE: Place = (None, None)


def turns_of(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The turns in their order; empty where the events name none.

    Each has `role`, `turn`, `sampled` (False: read, not written), its `events`, and its tokens: those from
    `begin` to `end` of `sequence`; null where another model wrote it.

    Args:
        lines: of all sequences of a trajectory (`reporting.rollout_log`).
    """
    events = [one for one in lines[0]["events"] if isinstance(one, Mapping)]
    if any("turn" in one and "role" in one for one in events):
        return _messages(events, {one["role"]: one for one in lines})
    if any("turn" in one for one in events):
        return _calls(events, min(lines, key=lambda one: one["sequence"]))
    return []


def _messages(events: Sequence[Mapping[str, Any]], lines: Mapping[str, Line]) -> list[dict[str, Any]]:
    """Each event is a message; an agent's messages stand in its sequence, between those that it heard."""
    turns, read = [], dict.fromkeys(lines, 0)
    for event in events:
        role, tokens = event.get("role"), event.get("tokens")
        line, place = lines.get(str(role)), NOWHERE
        if line is not None and tokens is not None:
            at = read[str(role)]
            begin = next((end for begin, end in line["masked"] if begin <= at < end), at)
            end = min(begin + tokens, len(line["token_ids"]))
            place, read[str(role)] = (begin, end), end
        sequence = None if line is None else line["sequence"]
        turns.append(_turn(role, event.get("turn"), role is not None, sequence, place, [event]))
    return turns


def _calls(events: Sequence[Mapping[str, Any]], line: Line) -> list[dict[str, Any]]:
    """A turn ends where tokens begin that the policy did not choose: the results of its calls."""
    turns, at, number, role, sequence = [], 0, 0, line["role"], line["sequence"]
    for begin, end in [*line["masked"], (len(line["token_ids"]), None)]:
        if begin > at:
            turns.append(_turn(role, number, True, sequence, (at, begin), []))
        if end is not None:
            called = [one for one in events if one.get("turn") == number]
            turns.append(_turn(None, number, False, sequence, (begin, end), called))
            at, number = end, number + 1
    later = [one for one in events if one.get("turn") is None or one["turn"] >= number]
    return [*turns, _turn(None, None, False, None, NOWHERE, later)] if later else turns


def _turn(
    role: Any, turn: Any, sampled: bool, sequence: Any, place: Place, events: Sequence[Any]
) -> dict[str, Any]:
    begin, end = place
    return {
        "role": role, "turn": turn, "sampled": sampled, "sequence": sequence, "begin": begin, "end": end,
        "events": list(events),
    }  # fmt: skip
