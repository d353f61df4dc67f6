"""The turns of a trajectory."""

from __future__ import annotations

from marsrl_verl.view.turns import turns_of


def line(role: str, sequence: int, tokens: int, masked: list[list[int]], events: list) -> dict:
    ids = list(range(tokens))
    return {"role": role, "sequence": sequence, "token_ids": ids, "masked": masked, "events": events}


def places(turns: list[dict]) -> list[tuple]:
    return [(one["role"], one["turn"], one["sequence"], one["begin"], one["end"]) for one in turns]


def test_messages_of_agents_in_turn():
    events = [
        {"turn": 0, "role": "planner", "tokens": 3},
        {"turn": 0, "role": "solver", "tokens": 2},
        {"turn": 1, "role": "planner", "tokens": 4},
        {"turn": 1, "role": "frozen", "tokens": None},
        {"end": "finished"},
    ]
    planner = line("planner", 0, 9, [[3, 5]], events)
    solver = line("solver", 1, 2, [], events)
    found = turns_of([solver, planner])
    assert places(found) == [
        ("planner", 0, 0, 0, 3), ("solver", 0, 1, 0, 2), ("planner", 1, 0, 5, 9),
        ("frozen", 1, None, None, None), (None, None, None, None, None),
    ]  # fmt: skip
    assert found[-1]["events"] == [{"end": "finished"}]


def test_what_an_agent_wrote_called_and_read():
    called = [{"turn": 0, "tool": "python"}, {"turn": 0, "tool": "search"}, {"turn": 1, "tool": "python"}]
    found = turns_of([line("solver", 0, 12, [[3, 5], [8, 10]], called)])
    assert places(found) == [
        ("solver", 0, 0, 0, 3), (None, 0, 0, 3, 5), ("solver", 1, 0, 5, 8), (None, 1, 0, 8, 10),
        ("solver", 2, 0, 10, 12),
    ]  # fmt: skip
    assert [[each["tool"] for each in one["events"]] for one in found] == [
        [], ["python", "search"], [], ["python"], [],
    ]  # fmt: skip


def test_a_call_that_was_cut_off_comes_last():
    found = turns_of([line("solver", 0, 3, [], [{"turn": 0, "tool": "python"}])])
    assert places(found) == [("solver", 0, 0, 0, 3), (None, None, None, None, None)]


def test_without_turns_there_are_none():
    assert turns_of([line("solver", 0, 3, [[1, 2]], [{"note": "x"}])]) == []
