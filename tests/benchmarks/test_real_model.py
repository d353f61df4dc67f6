"""The table of a real model's runs is read from what runs leave."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest
import yaml

from benchmarks.real_model import draw, level_rows, read, role_rows, rows

PROBLEMS = [("1+1?", "2", 1), ("2+2?", "4", 1), ("9+9?", "18", 2)]
ANSWERS = {"before": [None, "4", "1"], "after": ["2", "4", "18"]}


@pytest.fixture(params=["solver", "agent", "initial", "solution"])
def folder(tmp_path: Path, request) -> Path:
    """A finished run of a method whose first answers are of this stage."""
    stage = request.param
    data = [
        {"prompt": [{"role": "user", "content": one}], "extra_info": {"level": level}}
        for one, _, level in PROBLEMS
    ]
    pandas.DataFrame(data).to_parquet(tmp_path / "val.parquet")
    config = {
        "data": {"val_files": str(tmp_path / "val.parquet")},
        "marsrl": {"algo": {"name": "own"}, "run": {"seed": 3}},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [
        {"step": 1, "metrics": {f"stage/{stage}/reward_mean": 0.25}, "timings": {"step": 30.0}},
        {"step": 2, "metrics": {}, "timings": {"step": 30.0}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    for name in ("evaluations", "rollouts"):
        (tmp_path / name).mkdir()
    for tag, answers in ANSWERS.items():
        (tmp_path / "evaluations" / f"{tag}.json").write_text(json.dumps({"seconds": 15.0}))
        written = [
            {"stage": kind, "answer": answer, "problem": {"question": one, "ground_truth": right}}
            for (one, right, _), answer in zip(PROBLEMS, answers, strict=True)
            for kind in (stage, "verifier_1")
        ]
        for name in (tag, f"{tag}_greedy"):
            text = "".join(json.dumps(one) + "\n" for one in written)
            (tmp_path / "rollouts" / f"eval_{name}.jsonl").write_text(text)
    summary = {
        "before": {"system_accuracy": {"mean": 0.5}, "verifier_recall_greedy": {"mean": 0.0}},
        "after": {"system_accuracy": {"mean": 0.75}},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_a_run_is_a_row_and_its_levels_stand_apart(folder, tmp_path):
    run = read(folder)
    assert (run.seed, run.steps, run.minutes, run.rewards) == (3, 2, 1.5, [0.25, 0.25])
    assert run.solved["before"] == {1: [1, 2], 2: [0, 1]} and run.solved["after"] == {1: [2, 2], 2: [1, 1]}
    ((name, *_, before, after),) = rows([run])
    assert name == "own, seed 3" and before.startswith("33.3 [") and after.startswith("100.0 [")
    assert role_rows([run]) == [["own, seed 3", "– → –", "50 → 75", "0 → –", "– → –", "– → –", "– → –"]]
    assert [one[:2] for one in level_rows([run])] == [["1", "2"], ["2", "1"]]
    draw([run], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
