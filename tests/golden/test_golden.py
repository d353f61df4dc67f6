"""The core trains what it trained when the golden traces were recorded (`record.py`)."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
from record import SCENARIOS, check, trace
from scenarios import STEPS
from trace_files import COLUMNS, ENDINGS, FOLDER, asked, cells, differences, read


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_trained_has_not_changed(name):
    check(read(name), trace(name))


# --- that the traces are worth comparing ------------------------------------------------------


@pytest.fixture(scope="module")
def traces() -> dict[str, dict]:
    return {name: read(name) for name in SCENARIOS}


def test_every_file_belongs_to_a_scenario():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(SCENARIOS)


def test_most_steps_train(traces):
    for name, found in traces.items():
        assert len(found["steps"]) == STEPS
        assert sum(bool(step["rows"]) for step in found["steps"]) >= STEPS // 2, name
        assert {part.split("/")[0] for part in cells(found, "rows", "part")} == {"0", "1"}, name


def test_responses_and_problems_end_in_every_way(traces):
    endings = {name: set("".join(cells(found, "completed", "endings"))) for name, found in traces.items()}
    assert set().union(*endings.values()) == set(ENDINGS) and "R" in endings["marsrl_external_solver"]
    for name in (name for name in SCENARIOS if name.endswith("_faults")):
        assert endings[name] == set(ENDINGS) - {"R"}, name
        assert any("?" in rewards for rewards in cells(traces[name], "completed", "rewards")), name
    ended = {
        row[2]
        for found in traces.values()
        for part in (*found["steps"], found["end"])
        for row in part["ended"]
    }
    assert ended >= {"finished", "no_inputs", "stale", "dropped"}
    assert any(found["end"]["dropped"] for found in traces.values())


@pytest.mark.parametrize("name", ["marsrl_segments", "marsrl_partial_groups", "marsrl_overlap_segments"])
def test_responses_have_tokens_of_several_versions(traces, name):
    runs = [versions.count(":") for versions in cells(traces[name], "rows", "versions")]
    assert runs.count(3) > 5 and runs.count(2) > 5
    assert any(" continues " in one for one in asked(traces[name]))


@pytest.mark.parametrize(("name", "lag"), [("marsrl_overlap", 2), ("marsrl_pipelined", 1)])
def test_a_round_that_overlaps_is_a_version_late(traces, name, lag):
    for step, found in enumerate(traces[name]["steps"], 1):
        versions = {int(version) for version in cells({"steps": [found]}, "rows", "versions")}
        assert versions <= {max(0, step - lag)}


def test_parts_of_groups_are_trained_before_the_rest(traces):
    for name in ("marsrl_partial_groups", "marsrl_overlap_segments"):
        assert sum(bool(before) for before in cells(traces[name], "trained", "trained before")) > 10, name
    trained = [[row[0] for row in step["trained"]] for step in traces["marsrl_partial_groups"]["steps"]]
    assert any(len(set(names)) < len(names) for names in trained), "no held part met its whole group"
    groups = Counter(cells(traces["marsrl_partial_groups"], "trained", "request"))
    assert max(groups.values()) >= 3, "no group was trained in three parts"
    samples = list(cells(traces["marsrl_partial_groups"], "rows", "sample"))
    assert len(set(samples)) == len(samples)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("marsrl_budget_staleness", "stale"),
        ("marsrl_budget_staleness", "oldest waiting verifier_1"),
        ("marsrl_partial_groups", "held"),
        ("marsrl_segments", "unfinished"),
    ],
)
def test_pools_fill_and_wait(traces, name, count):
    assert any(step["counts"].get(count) for step in traces[name]["steps"])


def test_batches_are_cut_and_filled_up(traces):
    for name in ("marsrl_mini_batches", "marsrl_shared_prefixes"):
        assert max(step["updates"] for step in traces[name]["steps"]) > 1, name
        assert "1/1" in set(cells(traces[name], "rows", "part")), name
    assert len({step["updates"] for step in traces["marsrl_mini_batches"]["steps"]}) > 2
    assert sum(step["padding rows"] > 0 for found in traces.values() for step in found["steps"]) > 50


def test_parents_depend_on_the_selection(traces):
    names = ("marsrl_role_balance", "marsrl_random", "marsrl_balanced")
    parents = {frozenset(one for one in asked(traces[name]) if " from " in one) for name in names}
    assert all(parents) and len(parents) == 3


def test_roles_share_the_loss_as_they_are_told(traces):
    def advantages(name: str) -> set[str]:
        columns = (cells(traces[name], "rows", column) for column in ("sample", "advantages"))
        return {advantage for sample, advantage in zip(*columns, strict=True) if "verifier" in sample}

    assert len(advantages("marsrl_role_balance")) > 20 > len(advantages("marsrl_random"))


def test_tokens_are_left_out_and_weighted(traces):
    def zeros(name: str) -> int:
        return sum(one.count(":0 ") for one in cells(traces[name], "rows", "advantages"))

    assert zeros("marsrl_mastered_tokens") > 100 and zeros("marsrl_segments") == 0
    weights = [one for one in cells(traces["marsrl_weighted_tokens"], "loss", "mean weight") if one != ""]
    assert len(set(weights)) > 100 and 0 < min(weights) < 1 < max(weights) <= 1.5
    old = [set(cells(one, "loss", "old log-probs")) for one in traces.values() if "loss" in one["steps"][0]]
    assert old and all(len(one) > 100 for one in old)


# --- that a difference is found ---------------------------------------------------------------


def test_a_difference_names_its_place(traces):
    expected = traces["marsrl_pipelined"]
    found = copy.deepcopy(expected)
    step = next(step for step in found["steps"] if len(step["rows"]) > 3)
    row, column = step["rows"][2], COLUMNS["rows"].index("versions")
    before, row[column] = row[column], "99"
    place = f"marsrl_pipelined, step {step['step']}, rows row 2 ({row[0]}), versions"
    assert list(differences(expected, found)) == [f"{place}: expected {before!r}, found '99'"]


def test_another_order_of_rows_is_a_difference(traces):
    found = copy.deepcopy(traces["marsrl_pipelined"])
    rows = next(step for step in found["steps"] if len(step["rows"]) > 3)["rows"]
    rows[0], rows[1] = rows[1], rows[0]
    assert "rows row 0" in next(differences(traces["marsrl_pipelined"], found))


@pytest.mark.parametrize("part", ["completed", "trained", "rows"])
def test_every_column_is_compared(traces, part):
    expected = traces["marsrl_faults"]
    for at, column in enumerate(COLUMNS[part]):
        found = copy.deepcopy(expected)
        row = next(step for step in found["steps"] if step[part])[part][0]
        row[at] = "1:7" if column == "advantages" else "other"
        lines = list(differences(expected, found))
        assert f", {column}: expected" in lines[0]
        assert at == 0 or len(lines) == 1, "the first cell names the row"


def test_rounding_is_no_difference(traces):
    expected = traces["marsrl_pipelined"]
    found = copy.deepcopy(expected)
    row = next(step for step in found["steps"] if step["rows"])["rows"][0]
    row[-1] = str(float(row[-1]) * (1 + 1e-6))
    assert not list(differences(expected, found))
    row[-1] = str(float(row[-1]) * (1 + 1e-4))
    assert len(list(differences(expected, found))) == 1
