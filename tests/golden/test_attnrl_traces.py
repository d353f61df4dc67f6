"""The traces of trees are worth comparing."""

from __future__ import annotations

import pytest
from attnrl_scenarios import SCENARIOS
from trace_files import asked, cells, read


@pytest.fixture(scope="module")
def traces() -> dict[str, dict]:
    return {name: read(name) for name in SCENARIOS}


def test_problems_end_for_every_reason(traces):
    ended = {name: set(cells(found, "ended", "reason")) for name, found in traces.items()}
    assert {"rejected", "finished"} <= ended["attnrl_paper"] & ended["attnrl_released"]
    assert "no_inputs" in ended["attnrl_sequential"]
    assert "not_asked" in set().union(*ended.values())


def test_responses_have_tokens_of_several_versions(traces):
    runs = [versions.count(":") for versions in cells(traces["attnrl_faults"], "rows", "versions")]
    assert runs.count(3) > 5 and runs.count(2) > 5
    assert any(" continues " in one for one in asked(traces["attnrl_faults"]))


def test_batches_are_cut_and_groups_held(traces):
    steps = traces["attnrl_mini_batches"]["steps"]
    assert any(step["counts"].get("held") for step in steps)
    assert max(step["updates"] for step in steps) > 1
    assert "1/1" in set(cells(traces["attnrl_mini_batches"], "rows", "part"))


@pytest.mark.parametrize(
    "name", ["attnrl_paper", "attnrl_released", "attnrl_sequential", "treerl", "treerl_baseline"]
)
def test_trees_have_advantages_by_segment_and_recorded_values(traces, name):
    assert max(one.count(":") for one in cells(traces[name], "rows", "advantages")) >= 3
    assert any(cells(traces[name], "rows", "recorded entropies"))
    if name in ("attnrl_paper", "treerl_baseline"):
        recorded = {text.split()[0] for text in cells(traces[name], "rows", "recorded log-probs") if text}
        assert len(recorded) > 50


def test_continuations_have_many_parents_and_points(traces):
    assert len({one for one in asked(traces["attnrl_paper"]) if " from " in one}) > 100
    numbers = {step["metrics"]["attnrl/next_problems"] for step in traces["attnrl_paper"]["steps"]}
    assert len(numbers) > 1
    trees = ("treerl", "treerl_baseline")
    points = {frozenset(one for one in asked(traces[name]) if "continuation" in one) for name in trees}
    assert len(points) == 2
