from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks import policies
from benchmarks.exported_adapters import largest_difference, sampled
from benchmarks.policies import Agreement, Row, agreement_of, memory_now, note_peaks, tables
from benchmarks.processes import proportional_bytes
from benchmarks.taking_turns import whose_turn
from benchmarks.training_runs import Step


def step(number: int, mean: float, updated: bool = True) -> Step:
    metrics = {
        "training/updated": float(updated), "off_policy/age/0/log_ratio_abs_mean": mean,
        "off_policy/ratio_min": 0.9, "off_policy/ratio_max": 1.1,
    }  # fmt: skip
    return Step(number, metrics if updated else {"training/updated": 0.0}, {"step": 1.0})


def test_policies_take_turns_by_name():
    assert [whose_turn(number, {"judge", "shared"}) for number in (1, 2, 3)] == ["shared", "judge", "shared"]
    assert whose_turn(2, ["shared"]) == "shared"


def test_a_steps_figures_are_those_of_its_policy_after_so_many_updates():
    recorded = [step(1, 0.1), step(2, 0.2), step(3, 0.3, updated=False), step(4, 0.4), step(5, 0.5)]
    assert agreement_of(recorded, ("shared", "judge")) == [
        Agreement(1, "shared", 0, 0.1, 0.9, 1.1),
        Agreement(2, "judge", 0, 0.2, 0.9, 1.1),
        Agreement(4, "judge", 1, 0.4, 0.9, 1.1),
        Agreement(5, "shared", 1, 0.5, 0.9, 1.1),
    ]


def test_peaks_of_places_need_not_be_at_one_time():
    peaks: dict[str, int] = {}
    note_peaks(peaks, {"all": 5, "ranks": 3})
    note_peaks(peaks, {"all": 4, "ranks": 1, "engines": 3})
    assert peaks == {"all": 5, "ranks": 3, "engines": 3}


def test_memory_is_that_of_the_tagged_processes_alone():
    code = "block = bytearray(50_000_000); print('there', flush=True); input()"
    tagged = {**os.environ, policies.TAG: "mine"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=tagged, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "there\n"
        found = memory_now("mine")
        assert 50_000_000 < found["all"] < 200_000_000 and memory_now("another") == {"all": 0}
        number = child.pid
        child.communicate("\n")
    assert proportional_bytes(number) == 0, "it has ended"


def test_the_tables_have_medians_by_mode_and_the_first_runs_agreement():
    phases = {"gen": 1.0, "old_log_prob": 0.0, "update_actor": 0.0, "update_weights": 0.0}
    memory, told = {"all": 2000.0, "ranks": 500.0}, [Agreement(1, "shared", 0, 1e-6, 0.999, 1.001)]
    rows = [
        Row(mode, repeat, seconds, phases, 640, memory, 1.5, told)
        for mode, repeat, seconds in (("one model", 0, 1.0), ("one model", 1, 3.0), ("a model each", 0, 4.0))
    ]
    lines = [[cell.strip() for cell in line.split("|")] for line in tables(rows).splitlines()]
    figures = ["2.00", "1.00", "0.00", "0.00", "0.00", "640", "2,000", "500", "0", "1.50"]
    assert ["", "one model", *figures, ""] in lines
    assert sum(line[2:4] == ["shared", "0"] for line in lines) == 2


def test_responses_are_read_by_policy(tmp_path):
    (tmp_path / "rollouts").mkdir()
    rows = [("judge", [1, 2]), ("judge", []), ("shared", [4, 5])]
    lines = [json.dumps({"policy": policy, "token_ids": ids}) for policy, ids in rows]
    (tmp_path / "rollouts/step_2.jsonl").write_text("\n".join(lines))
    assert sampled(tmp_path, 2, "judge") == [[1, 2]]


def test_differences_are_of_values_at_the_same_places():
    assert largest_difference([[0.0, 1.0], [2.0]], [[0.5, 1.0], [4.0]]) == 2.0
    with pytest.raises(ValueError):
        largest_difference([[0.0]], [[0.0, 1.0]])
