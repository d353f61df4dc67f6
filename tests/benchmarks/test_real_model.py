"""The table of a real model's runs is read from what runs leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest
import yaml

from benchmarks.real_model import draw, part_rows, read, role_rows, rows, smooth, window_rows

PROBLEMS = [("1+1?", "2", 1), ("2+2?", "4", 1), ("9-1?", "8", 2)]
ANSWERS = {"before": [None, "4", "1"], "after": ["2", "4", "8"]}


@pytest.fixture
def folder(tmp_path: Path, request) -> Path:
    """A finished run of a method whose first answers are of this stage."""
    stage = getattr(request, "param", "solver")
    data = [
        {
            "prompt": [{"role": "user", "content": one}],
            "extra_info": {"level": level},
            "reward_model": {"ground_truth": right},
        }
        for one, right, level in PROBLEMS
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
    (tmp_path / "run.json").write_text(json.dumps({"created": "2026-11-27T04:00:00+00:00"}))
    return tmp_path


@pytest.mark.parametrize("folder", ["solver", "agent", "initial", "solution"], indirect=True)
def test_a_run_is_a_row_and_its_levels_stand_apart(folder):
    run = read(folder)
    assert run.created == "2026-11-27T04:00:00+00:00"
    assert (run.seed, run.steps, run.minutes, run.rewards) == (3, 2, 1.5, [0.25, 0.25])
    assert run.solved["before"] == {1: [1, 2], 2: [0, 1]} and run.solved["after"] == {1: [2, 2], 2: [1, 1]}
    ((name, *_, before, after),) = rows([run])
    assert name == "own, seed 3" and before.startswith("33.3 [") and after.startswith("100.0 [")
    assert role_rows([run]) == [["own, seed 3", "– → –", "50 → 75", "0 → –", "– → –", "– → –", "– → –"]]
    assert [one[:2] for one in part_rows([run.solved])] == [["1", "2"], ["2", "1"]]
    assert [one[:2] for one in part_rows([run.operations])] == [["+", "2"], ["-", "1"]]
    assert run.operations["after"] == {"+": [2, 2], "-": [1, 1]}


def test_a_problem_that_was_not_answered_is_not_solved(folder):
    """As ReMA's, where a plan can't be used."""
    path = folder / "rollouts" / "eval_before.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[2:]))
    assert read(folder).solved["before"] == {1: [1, 2], 2: [0, 1]}


def test_windows_of_marsrls_roles(folder):
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["marsrl"]["algo"]["name"] = "marsrl"
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    judged = [(0.0, "wrong", 1.0), (0.0, "correct", 0.0), (1.0, "wrong", 0.0)]
    lines = [{"role": "solver", "reward": reward} for reward in (0.0, 1.0, 1.0)]
    lines += [
        {"role": "verifier", "solution_reward": of, "verdict": verdict, "reward": reward}
        for of, verdict, reward in judged
    ]
    lines += [{"role": "corrector", "solution_reward": of, "reward": of} for of in (0.0, 1.0)]
    for step in (1, 2):
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (folder / "rollouts" / f"step_{step}.jsonl").write_text(text)
    run = read(folder)
    (one,) = run.windows
    assert (one.solved, one.errors_found, one.false_alarms, one.repaired) == ([4, 6], [2, 4], [2, 2], [0, 2])
    assert window_rows([run]) == [[folder.name, "1 to 2", "67", "50", "100", "0"]]


def test_runs_of_several_methods_are_drawn_by_method(folder, tmp_path):
    run = read(folder)
    other = replace(run, method="other", solved={tag: {7: [1, 4]} for tag in run.solved})
    assert [one[:2] for one in part_rows([run.solved, other.solved])] == [["1", "2"], ["2", "1"], ["7", "4"]]
    draw([run, other], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_rewards_are_means_of_the_last_steps():
    assert smooth([1.0, 0.0, 2.0, 4.0], window=2) == [1.0, 0.5, 1.0, 3.0]
