"""The core trains what it trained when the golden traces were recorded (`record.py`)."""

from __future__ import annotations

import copy

import pytest
from record import SCENARIOS, check, trace
from scenarios import STEPS
from trace_files import COLUMNS, ENDINGS, FOLDER, cells, differences, read


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
        trained = [bool(step["rows"]) for step in found["steps"]]
        assert sum(trained) >= STEPS // 2, name
        parts = set(cells(found, "rows", "part"))
        assert {part.split("/")[0] for part in parts} == {"0", "1"}, name


def test_responses_end_in_every_way(traces):
    endings = {name: "".join(cells(found, "completed", "endings")) for name, found in traces.items()}
    assert set("".join(endings.values())) == set(ENDINGS)
    for name in (name for name in SCENARIOS if name.endswith("_faults")):
        assert set(endings[name]) == set(ENDINGS) - {"R"}, name
        assert any("?" in rewards for rewards in cells(traces[name], "completed", "rewards")), name
    assert "R" in endings["marsrl_external_solver"]


def test_problems_end_for_every_reason(traces):
    ended = {
        name: {row[2] for step in found["steps"] for row in step["ended"]} for name, found in traces.items()
    }
    found = set().union(*ended.values()) | {row[2] for one in traces.values() for row in one["end"]["ended"]}
    assert found >= {"finished", "no_inputs", "stale", "dropped"}


def test_responses_have_tokens_of_several_versions(traces):
    for name in ("marsrl_segments", "marsrl_partial_groups", "marsrl_overlap_segments"):
        runs = [versions.count(":") for versions in cells(traces[name], "rows", "versions")]
        assert runs.count(3) > 5 and runs.count(2) > 5, name
        assert any(
            " continues " in one for step in traces[name]["steps"] for row in step["rounds"] for one in row
        )
    for found in (traces["marsrl_overlap"], traces["marsrl_pipelined"]):
        late = [
            {int(version) for version in cells({"steps": [step]}, "rows", "versions")}
            for step in found["steps"]
        ]
        lag = 2 if found["scenario"] == "marsrl_overlap" else 1
        assert all(versions <= {max(0, step - lag)} for step, versions in enumerate(late, 1))


def test_parts_of_groups_are_trained_before_the_rest(traces):
    for name in ("marsrl_partial_groups", "marsrl_overlap_segments"):
        assert sum(bool(before) for before in cells(traces[name], "trained", "trained before")) > 10, name
    steps = traces["marsrl_partial_groups"]["steps"]
    trained = [[row[0] for row in step["trained"]] for step in steps]
    assert any(len(set(names)) < len(names) for names in trained), "no held part met its whole group"
    groups = [row[0] for step in steps for row in step["trained"]]
    assert max(groups.count(name) for name in groups) >= 3, "no group was trained in three parts"
    samples = list(cells(traces["marsrl_partial_groups"], "rows", "sample"))
    assert len(set(samples)) == len(samples)


def test_pools_fill_and_wait(traces):
    def seen(name: str, count: str) -> bool:
        return any(step["counts"].get(count) for step in traces[name]["steps"])

    assert seen("marsrl_budget_staleness", "stale")
    assert seen("marsrl_budget_staleness", "oldest waiting verifier_1")
    assert seen("marsrl_partial_groups", "held")
    assert seen("marsrl_segments", "unfinished")
    assert any(found["end"]["dropped"] for found in traces.values())


def test_batches_are_cut_and_filled_up(traces):
    for name in ("marsrl_mini_batches", "marsrl_shared_prefixes"):
        assert max(step["updates"] for step in traces[name]["steps"]) > 1, name
        assert "1/1" in set(cells(traces[name], "rows", "part")), name
    assert len({step["updates"] for step in traces["marsrl_mini_batches"]["steps"]}) > 2
    assert sum(step["padding rows"] > 0 for found in traces.values() for step in found["steps"]) > 50


def test_parents_depend_on_the_selection(traces):
    def parents(name: str) -> set[str]:
        rounds = [row for step in traces[name]["steps"] for row in step["rounds"]]
        return {one for row in rounds for one in row if " from " in one}

    adaptive, chosen = parents("marsrl_role_balance"), [parents("marsrl_random"), parents("marsrl_balanced")]
    assert all(chosen) and adaptive != chosen[0] != chosen[1] != adaptive


def test_roles_share_the_loss_as_they_are_told(traces):
    def advantages(name: str, role: str) -> set[str]:
        pairs = zip(
            cells(traces[name], "rows", "sample"), cells(traces[name], "rows", "advantages"), strict=True
        )
        return {advantage for sample, advantage in pairs if role in sample}

    assert (
        len(advantages("marsrl_role_balance", "verifier")) > 20 > len(advantages("marsrl_random", "verifier"))
    )


def test_tokens_are_left_out_and_weighted(traces):
    def zeros(name: str) -> int:
        return sum(one.count(":0 ") for one in cells(traces[name], "rows", "advantages"))

    assert zeros("marsrl_mastered_tokens") > 100 and zeros("marsrl_segments") == 0
    weights = [one for one in cells(traces["marsrl_weighted_tokens"], "loss", "mean weight") if one != ""]
    assert len(set(weights)) > 100 and 0 < min(weights) < 1 < max(weights) <= 1.5
    old = [
        list(cells(traces[name], "loss", "old log-probs"))
        for name in traces
        if "loss" in traces[name]["steps"][0]
    ]
    assert old and all(len(set(one)) > 100 for one in old)


# --- that a difference is found ---------------------------------------------------------------


def test_a_difference_names_its_place(traces):
    expected = traces["marsrl_pipelined"]
    found = copy.deepcopy(expected)
    step = next(step for step in found["steps"] if len(step["rows"]) > 3)
    row, column = step["rows"][2], COLUMNS["rows"].index("versions")
    before, row[column] = row[column], "99"
    place = f"marsrl_pipelined, step {step['step']}, rows row 2 ({row[0]}), versions"
    assert [str(one) for one in differences(expected, found)] == [f"{place}: expected {before!r}, found '99'"]


def test_another_order_of_rows_is_a_difference(traces):
    found = copy.deepcopy(traces["marsrl_pipelined"])
    rows = next(step for step in found["steps"] if len(step["rows"]) > 3)["rows"]
    rows[0], rows[1] = rows[1], rows[0]
    (only,) = differences(traces["marsrl_pipelined"], found)
    assert (only.row, only.field) == ("rows from row 0 on", "the order")


@pytest.mark.parametrize("part", ["completed", "trained", "rows"])
def test_every_column_is_compared(traces, part):
    expected = traces["marsrl_faults"]
    for at, column in enumerate(COLUMNS[part]):
        found = copy.deepcopy(expected)
        row = next(step for step in found["steps"] if step[part])[part][0]
        row[at] = "1:7" if column == "advantages" else "other"
        assert len(list(differences(expected, found))) == 1, column


def test_rounding_is_no_difference(traces):
    expected = traces["marsrl_pipelined"]
    found = copy.deepcopy(expected)
    row = next(step for step in found["steps"] if step["rows"])["rows"][0]
    row[-1] = str(float(row[-1]) * (1 + 1e-6))
    assert not list(differences(expected, found))
    row[-1] = str(float(row[-1]) * (1 + 1e-4))
    assert len(list(differences(expected, found))) == 1
