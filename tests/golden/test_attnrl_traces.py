"""The traces of trees are worth comparing."""

from __future__ import annotations

import pytest
from attnrl_scenarios import SCENARIOS
from trace_files import cells, read


@pytest.fixture(scope="module")
def traces() -> dict[str, dict]:
    return {name: read(name) for name in SCENARIOS}


def test_problems_end_for_every_reason(traces):
    ended = {
        name: {row[2] for step in found["steps"] for row in step["ended"]} for name, found in traces.items()
    }
    assert {"rejected", "finished"} <= ended["attnrl_paper"] & ended["attnrl_released"]
    assert "no_inputs" in ended["attnrl_sequential"]
    assert "not_asked" in set().union(*ended.values())


def test_responses_have_tokens_of_several_versions(traces):
    runs = [versions.count(":") for versions in cells(traces["attnrl_faults"], "rows", "versions")]
    assert runs.count(3) > 5 and runs.count(2) > 5
    rounds = [row for step in traces["attnrl_faults"]["steps"] for row in step["rounds"]]
    assert any(" continues " in one for row in rounds for one in row)


def test_batches_are_cut_and_groups_held(traces):
    steps = traces["attnrl_mini_batches"]["steps"]
    assert any(step["counts"].get("held") for step in steps)
    assert max(step["updates"] for step in steps) > 1
    assert "1/1" in set(cells(traces["attnrl_mini_batches"], "rows", "part"))


def test_continuations_have_many_parents(traces):
    rounds = [row for step in traces["attnrl_paper"]["steps"] for row in step["rounds"]]
    assert len({one for row in rounds for one in row if " from " in one}) > 100


def test_trees_have_advantages_by_segment_and_recorded_values(traces):
    for name in ("attnrl_paper", "attnrl_released", "attnrl_sequential", "treerl", "treerl_baseline"):
        assert max(one.count(":") for one in cells(traces[name], "rows", "advantages")) >= 3, name
        assert any(cells(traces[name], "rows", "recorded entropies")), name
    for one in ("attnrl_paper", "treerl_baseline"):
        recorded = [str(text).split()[0] for text in cells(traces[one], "rows", "recorded log-probs") if text]
        assert len(set(recorded)) > 50, one
    numbers = [step["metrics"]["attnrl/next_problems"] for step in traces["attnrl_paper"]["steps"]]
    assert len(set(numbers)) > 1
    points = [
        {
            one
            for step in traces[name]["steps"]
            for row in step["rounds"]
            for one in row
            if "continuation" in one
        }
        for name in ("treerl", "treerl_baseline")
    ]
    assert points[0] != points[1]
