import json
import os
from dataclasses import replace

import numpy as np
import pytest
from evaluation_tools import system

from marsrl_verl.core.group import Group
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, Fork, RewardResult, Trajectory
from marsrl_verl.evaluation.estimators import Observations
from marsrl_verl.evaluation.runs import Call, Run, Runs
from marsrl_verl.evaluation.suite import EvaluationRecord, EvaluationResult
from marsrl_verl.reporting.metrics_log import read_metrics
from marsrl_verl.reporting.rollout_log import SCHEMA_VERSION, step_lines
from marsrl_verl.reporting.run_folder import (
    IfExists,
    OutputFolderError,
    RunFolder,
    check_output_folder,
    read_evaluations,
)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path):
    return [line["step"] for line in lines(path)]


def test_an_existing_run_is_not_touched(tmp_path):
    folder = RunFolder.create(tmp_path / "demo")
    assert json.loads((folder.path / "run.json").read_text())["format_version"] == 1
    folder.metrics.append(1, {"a": 1.0})
    with pytest.raises(OutputFolderError, match=r"already holds a run.*if_exists=resume.*if_exists=replace"):
        RunFolder.create(tmp_path / "demo", "fail")
    assert steps(tmp_path / "demo" / "metrics.jsonl") == [1]


def test_resume_keeps_replace_deletes(tmp_path):
    started = RunFolder.create(tmp_path / "demo", "resume")  # there is none yet
    assert not started.resumed
    started.metrics.append(1, {"a": 1.0})
    resumed = RunFolder.create(tmp_path / "demo", IfExists.RESUME)
    assert resumed.resumed and steps(resumed.path / "metrics.jsonl") == [1]
    fresh = RunFolder.create(tmp_path / "demo", "replace")
    assert not fresh.resumed
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
    assert {path.name for path in fresh.path.iterdir()} == {".lock", "run.json"}


def test_a_start_that_failed_does_not_take_the_name(tmp_path):
    RunFolder.create(tmp_path / "demo").write_config("a: 1\n")
    again = RunFolder.create(tmp_path / "demo", "fail")
    assert not again.resumed
    again.write_config("a: 2\n")
    assert (tmp_path / "demo" / "config.1.yaml").read_text() == "a: 1\n"
    again.write_evaluation(result("before", 0))
    with pytest.raises(OutputFolderError, match="already holds a run"):
        RunFolder.create(tmp_path / "demo", "fail")


@pytest.mark.parametrize("kept", ["checkpoints/global_step_1/actor/model.pt", "rollouts/step_1.jsonl"])
def test_what_a_run_left_takes_the_name(tmp_path, kept):
    RunFolder.create(tmp_path)
    (tmp_path / kept).parent.mkdir(parents=True)
    check_output_folder(tmp_path)
    (tmp_path / kept).write_text("")
    with pytest.raises(OutputFolderError, match="already holds a run"):
        check_output_folder(tmp_path)


def test_an_interrupted_replace_leaves_nothing_to_continue_and_is_finished_later(tmp_path, monkeypatch):
    folder = RunFolder.create(tmp_path)
    folder.metrics.append(1, {"a": 1.0})
    (tmp_path / "checkpoints" / "global_step_1").mkdir(parents=True)
    replace, moved = os.replace, []

    def killed(source, target):
        if moved:
            raise KeyboardInterrupt
        moved.append(source)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.create(tmp_path, "replace")
    assert not (tmp_path / "checkpoints").exists()
    assert not RunFolder.create(tmp_path, "replace").resumed
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "run.json"}


@pytest.mark.parametrize("policy", list(IfExists))
def test_foreign_files_are_never_touched(tmp_path, policy):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputFolderError, match="holds files that no run"):
        RunFolder.create(tmp_path, policy)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("policy", list(IfExists))
def test_an_empty_folder_is_taken(tmp_path, policy):
    (tmp_path / ".hidden").mkdir()
    assert RunFolder.create(tmp_path, policy).path == tmp_path


def test_other_refusals(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFolderError, match="is a file"):
        check_output_folder(tmp_path / "file")
    with pytest.raises(OutputFolderError, match=r"if_exists='overwrite' is unknown; use one of fail, resume"):
        check_output_folder(tmp_path / "new", "overwrite")
    with pytest.raises(OutputFolderError, match=r"run\.json is missing"):
        RunFolder.attach(tmp_path)
    (tmp_path / "run.json").write_text('{"format_version": 99}')
    with pytest.raises(OutputFolderError, match="format 99"):
        RunFolder.attach(tmp_path)


def test_checking_creates_nothing(tmp_path):
    check_output_folder(tmp_path / "new", "replace")
    assert not (tmp_path / "new").exists()


def test_metrics_are_flushed_line_by_line(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.metrics.append(1, {"role/solver/reward_mean": np.float32(0.5), "bad": float("nan")}, {"step": 2.5})
    expected = {
        "step": 1,
        "metrics": {"role/solver/reward_mean": 0.5, "bad": None},
        "timings": {"step": 2.5},
    }
    assert lines(tmp_path / "metrics.jsonl") == [expected]
    (read,) = read_metrics(folder.path)
    assert (read.step, read.metrics["bad"], read.timings) == (1, None, {"step": 2.5})


def test_steps_must_increase(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.metrics.append(4, {})
    with pytest.raises(ValueError, match="step 4 come after those of step 4"):
        folder.metrics.append(4, {})
    with pytest.raises(ValueError, match="step 3 come after those of step 4"):
        RunFolder.attach(tmp_path).metrics.append(3, {})


def test_resume_moves_later_lines_aside(tmp_path):
    folder = RunFolder.create(tmp_path)
    for step in range(1, 6):
        folder.metrics.append(step, {"x": step})
    resumed = RunFolder.create(tmp_path, "resume")
    assert resumed.roll_back(3) == 2
    resumed.metrics.append(4, {"x": 40})
    assert [line["metrics"]["x"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 40]
    assert steps(tmp_path / "metrics.replaced.jsonl") == [4, 5]
    assert resumed.roll_back(0) == 4
    assert steps(tmp_path / "metrics.replaced.jsonl") == [4, 5, 1, 2, 3, 4]
    assert read_metrics(resumed.path) == []


def test_a_half_written_line_is_set_aside(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.metrics.append(1, {"x": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "met')
    assert [item.step for item in read_metrics(folder.path)] == [1]
    RunFolder.attach(tmp_path).metrics.append(2, {"x": 2})
    assert steps(tmp_path / "metrics.jsonl") == [1, 2]
    assert (tmp_path / "metrics.replaced.jsonl").read_text() == '{"step": 2, "met\n'


def test_a_damaged_line_is_named(tmp_path):
    folder = RunFolder.create(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\noops\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: not JSON"):
        read_metrics(folder.path)


def group(step):
    request = RolloutRequest(
        group_id=f"g{step}",
        problem=Problem("p1", "1 + 1?", "2", "tiny"),
        stage="verifier_1",
        role="verifier",
        messages=({"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1?"}),
        n=1,
        parent_id="s#0",
        inputs={"solution": "2", "solution_reward": 1.0},
    )
    one = Trajectory(
        trajectory_id=f"g{step}#0",
        sequences=[
            Sequence(
                "verifier", [1, 2], [3, 4, 5], [-0.1, -0.2, -0.3], versions=((3, step),), policy="shared"
            )
        ],
        finish=FinishReason.STOP,
        text="<think>é</think>2",
        final_text="2",
        reward=RewardResult(1.0, {"answer": "2", "verdict": "correct"}),
    )
    return Group(request, [one])


def record(request, trajectory):
    """What MarsRL adds to a line."""
    return system(None).record(request, trajectory)


def written(folder, step, *groups, record=record):
    """The lines of a step's file."""
    folder.write_rollouts(step, step_lines(step, groups, record), {})
    return lines(folder.path / "rollouts" / f"step_{step}.jsonl")


def test_rollouts(tmp_path):
    assert written(RunFolder.create(tmp_path), 7, group(7)) == [
        {
            "schema_version": SCHEMA_VERSION,
            "step": 7,
            "role": "verifier",
            "stage": "verifier_1",
            "group": "g7",
            "trajectory": "g7#0",
            "sequence": 0,
            "policy": "shared",
            "parent": "s#0",
            "fork": None,
            "problem": {
                "id": "p1",
                "question": "1 + 1?",
                "ground_truth": "2",
                "data_source": "tiny",
                "ability": "",
                "extra_info": {},
            },
            "rollout": "single_call",
            "inputs": {"solution": "2", "solution_reward": 1.0},
            "prompt": "[system]\nAdd.\n\n[user]\n1 + 1?",
            "response": "<think>é</think>2",
            "final": "2",
            "prompt_tokens": 2,
            "tokens": 3,
            "token_ids": [3, 4, 5],
            "masked": [],
            "external": False,
            "reward": 1.0,
            "graded": True,
            "finish_reason": "stop",
            "policy_version": 7,
            "versions": [[3, 7]],
            "error": None,
            "prefix_tokens": 0,
            "events": [],
            "answer": "2",
            "verdict": "correct",
            "solution_reward": 1.0,
        }
    ]


def test_what_rewards_read_of_a_problem_and_of_a_request_stands_once_in_a_file(tmp_path):
    one = group(1)
    one.request.problem.extra_info["level"] = 3
    one.trajectories.append(replace(one.trajectories[0], trajectory_id="g1#1"))
    first, second = written(RunFolder.create(tmp_path), 1, one)
    assert first["problem"]["extra_info"] == {"level": 3} and first["inputs"] == one.request.inputs
    assert set(first) - set(second) == {"rollout", "inputs"}
    assert set(first["problem"]) - set(second["problem"]) == {"ability", "extra_info"}


def test_every_key_of_the_schema_is_documented(tmp_path):
    from marsrl_verl.reporting import rollout_log

    (line,) = written(RunFolder.create(tmp_path), 1, group(1))
    own = {"verdict", "solution_reward"}  # MarsRL's
    assert [key for key in line if f" {key}" not in rollout_log.__doc__ and key not in own] == []


def test_every_sequence_has_a_line_and_so_has_a_trajectory_without_any(tmp_path):
    one = group(1)
    [two] = one.trajectories
    tool = Sequence("worker", [9], [6, 7, 8, 9], [0.0] * 4, [1, 0, 0, 1], ((4, 1),), "other", reward=0.25)
    two.sequences.append(tool)
    two.fork = Fork("g1#7", 2)
    two.events = [{"turn": 1}]
    external = Trajectory(
        "g1#1", [], FinishReason.STOP, "2", "2", RewardResult(0.0, error="no", graded=False)
    )
    open_ = Trajectory("g1#2", [Sequence("solver", [1], [2], [0.0])], FinishReason.LIMIT, detail="turns")
    one.trajectories += [external, open_]
    found = written(RunFolder.create(tmp_path), 1, one, record=lambda request, trajectory: {})
    assert [(line["trajectory"], line["sequence"], line["role"], line["policy"]) for line in found] == [
        ("g1#0", 0, "verifier", "shared"),
        ("g1#0", 1, "worker", "other"),
        ("g1#1", 0, "verifier", None),
        ("g1#2", 0, "solver", "shared"),
    ]
    assert [line["reward"] for line in found] == [1.0, 0.25, 0.0, None]
    assert [line["masked"] for line in found] == [[], [[1, 3]], [], []]
    assert [line["tokens"] for line in found] == [3, 4, None, 1]
    assert [line["graded"] for line in found] == [True, True, False, None]
    assert [line["error"] for line in found] == [None, None, "no", "turns"]
    assert [line["external"] for line in found] == [False, False, True, False]
    assert found[2]["token_ids"] == found[2]["versions"] == []
    assert found[2]["prompt_tokens"] is found[2]["policy_version"] is None
    assert found[1]["fork"] == {"trajectory": "g1#7", "token": 2, "sequence": 0}
    assert found[1]["events"] == [{"turn": 1}]


def test_a_method_must_not_take_a_key_that_every_line_has():
    with pytest.raises(ValueError, match=r"keys \['reward'\]"):
        step_lines(1, [group(1)], lambda request, trajectory: {"reward": 2.0})


def test_lines_say_what_was_known_when_they_were_made(tmp_path):
    one = group(1)
    found = step_lines(1, [one], record)
    one.trajectories[0].reward = RewardResult(0.0)
    RunFolder.create(tmp_path).write_rollouts(1, found, {})
    assert lines(tmp_path / "rollouts" / "step_1.jsonl")[0]["reward"] == 1.0


def result(tag, step):
    item = group(step)
    run = Run(item.request.problem, 0, calls=[Call(item.request, item.trajectories[0])])
    record = EvaluationRecord(
        tag, step, 0.95, 1.0, 1, 1, 3.0, 3, {"solver_accuracy": Observations((True,), ("p1",))}
    )
    return EvaluationResult(record, system(None), Runs(tag, [run]), Runs(f"{tag}_greedy", [run]))


def test_evaluations_are_kept_and_ordered(tmp_path):
    folder = RunFolder.create(tmp_path)
    for tag, step in (("after", 12), ("before", 0), ("step_6", 6)):
        folder.write_evaluation(result(tag, step))
    records = read_evaluations(tmp_path)
    assert [record.tag for record in records] == ["before", "step_6", "after"]
    assert records[0] == result("before", 0).record
    assert lines(tmp_path / "rollouts" / "eval_after_greedy.jsonl")[0]["step"] == 12


def test_an_earlier_end_becomes_the_evaluation_of_its_step(tmp_path):
    folder = RunFolder.create(tmp_path)
    for step in (10, 20):
        folder.write_evaluation(result("after", step))
    assert [(record.tag, record.step) for record in read_evaluations(folder.path)] == [
        ("step_10", 10),
        ("after", 20),
    ]
    for tag, step in (("step_10", 10), ("step_10_greedy", 10), ("after", 20), ("after_greedy", 20)):
        assert lines(tmp_path / "rollouts" / f"eval_{tag}.jsonl")[0]["step"] == step
    folder.write_evaluation(result("after", 20))
    assert len(read_evaluations(folder.path)) == 2


def test_rolling_back_sets_rollouts_and_evaluations_aside(tmp_path):
    folder = RunFolder.create(tmp_path)
    for step in (2, 20):
        written(folder, step, group(step))
        folder.write_evaluation(result(f"step_{step}", step))
    folder.roll_back(2)
    written(folder, 20, group(20))
    folder.roll_back(2)
    assert {path.name for path in (tmp_path / "rollouts").iterdir()} == {
        "step_2.jsonl",
        "eval_step_2.jsonl",
        "eval_step_2_greedy.jsonl",
    }
    assert {path.name for path in (tmp_path / "replaced").iterdir()} == {
        "step_20.1.jsonl",
        "step_20.2.jsonl",
        "step_20.1.json",
        "step_20.2.json",
        "step_20.3.json",
        "eval_step_20.1.jsonl",
        "eval_step_20_greedy.1.jsonl",
    }
    assert [record.step for record in read_evaluations(folder.path)] == [2]


def test_an_earlier_config_is_kept(tmp_path):
    folder = RunFolder.create(tmp_path)
    for text in ("a: 1\n", "a: 1\n", "a: 2\n"):
        folder.write_config(text)
    assert folder.config_path.read_text() == "a: 2\n"
    assert (tmp_path / "config.1.yaml").read_text() == "a: 1\n"
    assert not (tmp_path / "config.2.yaml").exists()


@pytest.mark.parametrize("kill_at", [1, 2])
def test_a_kill_while_the_config_changes_leaves_one(tmp_path, monkeypatch, kill_at):
    folder = RunFolder.create(tmp_path)
    folder.write_config("a: 1\n")
    replace, calls = os.replace, []

    def killed(*args):
        calls.append(args)
        if len(calls) == kill_at:
            raise KeyboardInterrupt
        replace(*args)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write_config("a: 2\n")
    assert folder.config_path.read_text() == "a: 1\n"


def test_half_written_files_of_a_killed_run_are_removed(tmp_path):
    folder = RunFolder.create(tmp_path)
    written(folder, 1, group(1))
    (tmp_path / "rollouts" / ".step_2.jsonl.77.tmp").write_text("{")
    folder.roll_back(1)
    assert [path.name for path in (tmp_path / "rollouts").iterdir()] == ["step_1.jsonl"]
