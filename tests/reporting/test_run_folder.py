import json
import os

import numpy as np
import pytest

from marsrl_verl.core.types import FinishReason, Group, Outcome, Problem, Sample, StageInput, Verdict
from marsrl_verl.evaluation.estimators import Observations
from marsrl_verl.evaluation.suite import EvaluationRecord, EvaluationResult
from marsrl_verl.evaluation.system import Call, SystemEvaluation, SystemRun
from marsrl_verl.reporting.files import to_json, write_atomic, write_lines_atomic
from marsrl_verl.reporting.rollout_log import SCHEMA_VERSION
from marsrl_verl.reporting.run_folder import Existing, OutputFolderError, RunFolder, check_output_folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path):
    return [line["step"] for line in lines(path)]


def test_a_new_folder(tmp_path):
    folder = RunFolder.create(tmp_path / "outputs" / "demo")
    assert not folder.resumed
    assert json.loads((folder.path / "run.json").read_text())["format_version"] == 1
    assert RunFolder.attach(folder.path).path == folder.path


def test_an_existing_run_is_not_touched(tmp_path):
    RunFolder.create(tmp_path / "demo").append_metrics(1, {"a": 1.0})
    with pytest.raises(OutputFolderError, match=r"already holds a run.*existing=resume.*existing=replace"):
        RunFolder.create(tmp_path / "demo", "fail")
    assert steps(tmp_path / "demo" / "metrics.jsonl") == [1]


def test_resume_keeps_replace_deletes(tmp_path):
    RunFolder.create(tmp_path / "demo").append_metrics(1, {"a": 1.0})
    resumed = RunFolder.create(tmp_path / "demo", Existing.RESUME)
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
    folder.append_metrics(1, {"a": 1.0})
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


def test_resume_without_a_run_starts_one(tmp_path):
    assert not RunFolder.create(tmp_path / "demo", "resume").resumed


@pytest.mark.parametrize("policy", list(Existing))
def test_foreign_files_are_never_touched(tmp_path, policy):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputFolderError, match="holds files that no run"):
        RunFolder.create(tmp_path, policy)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("policy", list(Existing))
def test_an_empty_folder_is_taken(tmp_path, policy):
    (tmp_path / ".hidden").mkdir()
    assert RunFolder.create(tmp_path, policy).path == tmp_path


def test_other_refusals(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFolderError, match="is a file"):
        check_output_folder(tmp_path / "file")
    with pytest.raises(OutputFolderError, match=r"existing='overwrite' is unknown; use one of fail, resume"):
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
    folder.append_metrics(1, {"role/solver/reward_mean": np.float32(0.5), "bad": float("nan")}, {"step": 2.5})
    expected = {
        "step": 1,
        "metrics": {"role/solver/reward_mean": 0.5, "bad": None},
        "timings": {"step": 2.5},
    }
    assert lines(tmp_path / "metrics.jsonl") == [expected]
    (read,) = folder.read_metrics()
    assert (read.step, read.metrics["bad"], read.timings) == (1, None, {"step": 2.5})


def test_steps_must_increase(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.append_metrics(4, {})
    with pytest.raises(ValueError, match="step 4 come after those of step 4"):
        folder.append_metrics(4, {})
    with pytest.raises(ValueError, match="step 3 come after those of step 4"):
        RunFolder.attach(tmp_path).append_metrics(3, {})


def test_resume_moves_later_lines_aside(tmp_path):
    folder = RunFolder.create(tmp_path)
    for step in range(1, 6):
        folder.append_metrics(step, {"x": step})
    resumed = RunFolder.create(tmp_path, "resume")
    assert resumed.roll_back(3) == 2
    resumed.append_metrics(4, {"x": 40})
    assert [line["metrics"]["x"] for line in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 40]
    assert steps(tmp_path / "metrics.replaced.jsonl") == [4, 5]
    assert resumed.roll_back(0) == 4
    assert steps(tmp_path / "metrics.replaced.jsonl") == [4, 5, 1, 2, 3, 4]
    assert resumed.read_metrics() == []


def test_a_half_written_line_is_set_aside(tmp_path):
    folder = RunFolder.create(tmp_path)
    folder.append_metrics(1, {"x": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "met')
    assert [item.step for item in folder.read_metrics()] == [1]
    RunFolder.attach(tmp_path).append_metrics(2, {"x": 2})
    assert steps(tmp_path / "metrics.jsonl") == [1, 2]
    assert (tmp_path / "metrics.replaced.jsonl").read_text() == '{"step": 2, "met\n'


def test_a_damaged_line_is_named(tmp_path):
    folder = RunFolder.create(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\noops\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: not JSON"):
        folder.read_metrics()


def group(step):
    problem = Problem("p1", "1 + 1?", "2", "tiny")
    outcome = Outcome(1.0, answer="2", verdict=Verdict.CORRECT)
    name = f"g{step}"
    chat = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1?"})
    item = StageInput(name, problem, "verifier_1", 1, "verifier", chat, 1, "s#0", "2", 1.0)
    one = Sample(
        f"{name}#0",
        name,
        [1, 2],
        [3, 4, 5],
        [-0.1] * 3,
        FinishReason.STOP,
        "<think>é</think>2",
        "2",
        policy_version=step,
        outcome=outcome,
    )
    return Group(item, [one])


def test_rollouts(tmp_path):
    folder = RunFolder.create(tmp_path)
    path = folder.write_rollouts(7, [group(7)])
    assert path == tmp_path / "rollouts" / "step_7.jsonl"
    assert lines(path) == [
        {
            "schema_version": SCHEMA_VERSION,
            "step": 7,
            "role": "verifier",
            "stage": "verifier_1",
            "group": "g7",
            "sample": "g7#0",
            "parent": "s#0",
            "problem": {"id": "p1", "question": "1 + 1?", "ground_truth": "2", "data_source": "tiny"},
            "prompt": "[system]\nAdd.\n\n[user]\n1 + 1?",
            "response": "<think>é</think>2",
            "final": "2",
            "prompt_tokens": 2,
            "tokens": 3,
            "token_ids": [3, 4, 5],
            "external": False,
            "reward": 1.0,
            "graded": True,
            "answer": "2",
            "verdict": "correct",
            "solution_reward": 1.0,
            "finish_reason": "stop",
            "policy_version": 7,
            "segments": [[3, 7]],
            "error": None,
            "prefix_tokens": 0,
            "steps": None,
            "influence": None,
        }
    ]


def test_every_key_of_the_schema_is_documented(tmp_path):
    from marsrl_verl.reporting import rollout_log

    (line,) = lines(RunFolder.create(tmp_path).write_rollouts(1, [group(1)]))
    assert [key for key in line if f" {key}" not in rollout_log.__doc__] == []


def result(tag, step):
    item = group(step)
    run = SystemRun(item.input.problem, 0, [Call(item.input, item.samples[0])])
    record = EvaluationRecord(
        tag, step, 0.95, 1.0, 1, 1, 2, 3.0, 3, {"solver_accuracy": Observations((True,), ("p1",))}
    )
    return EvaluationResult(record, SystemEvaluation(tag, [run]), SystemEvaluation(f"{tag}_greedy", [run]))


def test_evaluations_are_kept_and_ordered(tmp_path):
    folder = RunFolder.create(tmp_path)
    for tag, step in (("after", 12), ("before", 0), ("step_6", 6)):
        folder.write_evaluation(result(tag, step))
    records = RunFolder.attach(tmp_path).read_evaluations()
    assert [record.tag for record in records] == ["before", "step_6", "after"]
    assert records[0] == result("before", 0).record
    assert lines(tmp_path / "rollouts" / "eval_after_greedy.jsonl")[0]["step"] == 12


def test_an_earlier_end_becomes_the_evaluation_of_its_step(tmp_path):
    folder = RunFolder.create(tmp_path)
    for step in (10, 20):
        folder.write_evaluation(result("after", step))
    assert [(record.tag, record.step) for record in folder.read_evaluations()] == [
        ("step_10", 10),
        ("after", 20),
    ]
    for tag, step in (("step_10", 10), ("step_10_greedy", 10), ("after", 20), ("after_greedy", 20)):
        assert lines(tmp_path / "rollouts" / f"eval_{tag}.jsonl")[0]["step"] == step
    folder.write_evaluation(result("after", 20))
    assert len(folder.read_evaluations()) == 2


def test_rolling_back_sets_rollouts_and_evaluations_aside(tmp_path):
    folder = RunFolder.create(tmp_path)
    for step in (2, 20):
        folder.write_rollouts(step, [group(step)])
        folder.write_evaluation(result(f"step_{step}", step))
    folder.roll_back(2)
    folder.write_rollouts(20, [group(20)])
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
        "eval_step_20.1.jsonl",
        "eval_step_20_greedy.1.jsonl",
    }
    assert [record.step for record in folder.read_evaluations()] == [2]


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


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_atomic(path, "old")

    def breaking_off():
        yield "new"
        raise MemoryError

    with pytest.raises(MemoryError):
        write_lines_atomic(path, breaking_off())
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]


def test_half_of_a_surrogate_pair_is_kept_in_json_and_stops_nothing(tmp_path):
    path = tmp_path / "x.json"
    write_atomic(path, to_json({"a": "ü\ud800"}))
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "ü\ud800"}


def test_json_has_no_nan():
    assert to_json({"a": [float("inf"), np.int64(3)], "b": (True, None, "ü")}) == (
        '{"a": [null, 3], "b": [true, null, "ü"]}'
    )
