"""Data preparation with real vLLM on CPU and the tiny model."""

from __future__ import annotations

import json
import sys

import pytest
from watching import watched

from marsrl_verl.demo.problems import Split
from marsrl_verl.demo.problems import rows as tiny_rows
from marsrl_verl.rewards.extraction import boxed_answer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PROBLEMS, ANSWERS = 60, 8


def test_the_tiny_model_answers_its_easy_problems_go_and_no_port_opens(tmp_path):
    source, output = tmp_path / "sums.jsonl", tmp_path / "out"
    rows = tiny_rows(Split.TRAIN, PROBLEMS, seed=3)
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    words = ["--input", str(source), "--output", str(output), "--held-out", "5", "--keep-responses"]
    module = "recipe.marsrl.prepare_data"
    seen = watched([sys.executable, "-m", module, *words, "model=tiny", "cluster=cpu"], tmp_path / "log")
    assert seen.listening, "torch's store was seen"
    assert not seen.open_to_others
    report = json.loads((output / "report.json").read_text())
    assert (report["source"]["duplicates"], report["source"]["problems"]) == (1, PROBLEMS)
    bars = report["answers"]["histogram"]
    assert sum(bar["problems"] for bar in bars) == PROBLEMS
    # The Solver is right in about 55 % of its answers at temperature 1; a prompt or a grader that is not
    # training's would leave next to nothing.
    right = sum(bar["right"] * bar["problems"] for bar in bars) / (PROBLEMS * ANSWERS)
    assert 0.35 < right < 0.75
    kept = report["selection"]["kept"]
    assert kept == PROBLEMS - sum(bar["problems"] for bar in bars if bar["right"] == ANSWERS)
    assert report["written"] == {"train": kept - 5, "val": 5}
    head, *lines = map(json.loads, (output / "grades.jsonl").read_text().splitlines())
    assert head["settings"]["marsrl.roles.solver.temperature"] == 1.0
    assert len(lines) == PROBLEMS
    assert any(len(set(line["responses"])) > 1 for line in lines), "answers of a problem are drawn one by one"
    for line in lines:
        for grade, response in zip(line["grades"], line["responses"], strict=True):
            found = boxed_answer(response)
            boxed = found is not None and found.text == line["ground_truth"] and grade["finish"] == "stop"
            assert grade["reward"] >= boxed
            assert not grade["reward"] or line["ground_truth"] in response
            assert "<|" not in response
