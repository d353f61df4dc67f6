"""The checks for a GPU, as far as a processor can run them: the runner, the runs' settings, the models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from unittest import mock

import pytest
from composing import has_presets
from ending_checks import CALL

pytest.importorskip("torch", reason="the checks are torch's")

from benchmarks.gpu_check import __main__ as command
from benchmarks.gpu_check import call_4, call_5, calls, runner, training
from benchmarks.gpu_check.call_4 import EXPECTED, JUDGED, judge, rows_of
from benchmarks.gpu_check.checks import NO_DEVICE, Bench, CheckError, NoCudaDeviceError
from benchmarks.gpu_check.models import QWEN3_06B, SMALL, random_model
from benchmarks.gpu_check.rewards import Parity
from benchmarks.training_runs import Step
from marsrl_verl.config.application import check_values
from marsrl_verl.config.model_shapes import shape_from_config

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(monkeypatch):
    """The call above is run as call 9, in the checks' own processes."""
    monkeypatch.setattr(runner, "_WITHOUT_GPU", 1)
    code = (
        "import sys; from pathlib import Path; import benchmarks.gpu_check.calls as calls; "
        f"sys.path.insert(0, {str(Path(__file__).parent)!r}); import ending_checks as own; "
        "calls.load = lambda number: own.CALL; from benchmarks.gpu_check import child; "
        "child.load = calls.load; child.main(9, sys.argv[-2], Path(sys.argv[-1]))"
    )
    real = runner.subprocess.Popen

    def start(command, **options):
        return real([command[0], "-c", code, *command[-2:]], **options)

    monkeypatch.setattr(runner.subprocess, "Popen", start)


def test_a_call_goes_on_after_every_kind_of_failure(here, tmp_path, capsys):
    outcomes = {one.check: one for one in runner.run_call(CALL, tmp_path)}
    import torch

    there = torch.cuda.is_available()
    assert [one.result for one in outcomes.values()] == [
        "passed", "passed" if there else NO_DEVICE, "FAILED", "FAILED", "timed out", "passed",
    ]  # fmt: skip
    assert outcomes["needs cuda"].figures == {"made": 3}
    assert outcomes["failing"].figures == {"before": 1} and "expected 3" in outcomes["failing"].error
    assert "status -9" in outcomes["dying"].error
    printed = capsys.readouterr().out
    assert "| failing" in printed and "Traceback" not in printed and "the tests" in printed
    record = json.loads((tmp_path / "call_9.json").read_text())
    assert [one["check"] for one in record["checks"]] == [one.name for one in CALL.checks]
    assert record["versions"]["torch"] and record["date"].endswith("UTC")
    assert "CheckError" in (tmp_path / "call_9" / "failing" / "log.txt").read_text()


def test_overrides_of_the_command_line_come_last(monkeypatch, tmp_path):
    given = {}

    def noted(call, folder, only, patience):
        given.update(patience=patience, own=training.overrides("model=tiny"))
        return []

    monkeypatch.setattr(command, "run_call", noted)
    share = "actor_rollout_ref.rollout.gpu_memory_utilization=0.1"
    with mock.patch.dict("os.environ"):
        command.main(
            ["5", "--folder", str(tmp_path), "--patience", "2", "--set", share, "--set", "data.seed=7"]
        )
    assert given["patience"] == 2.0 and given["own"][-2:] == [share, "data.seed=7"]
    check_values([*given["own"], f"marsrl.run.output_root={tmp_path}"])  # a key may be given twice
    assert training.overrides()[-1] != "data.seed=7"


def test_what_a_call_has_no_time_for_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_WITHOUT_GPU", 0)
    assert {one.result for one in runner.run_call(CALL, tmp_path)} == {"not reached"}


def test_the_status_says_whether_all_passed(monkeypatch, tmp_path):
    def outcomes(*results):
        monkeypatch.setattr(
            command, "run_call", lambda *_: [runner.Outcome("a", result, 1.0) for result in results]
        )
        return command.main(["1", "--folder", str(tmp_path)])

    assert outcomes("passed", "passed") == 0
    assert outcomes("passed", NO_DEVICE) == 1
    assert outcomes("passed", "not reached") == 1


@pytest.mark.parametrize(
    ("wrong", "said"), [(["7"], "the parts are"), (["1", "--only", "nothing"], "the checks are")]
)
def test_a_part_or_check_that_is_not_there(wrong, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(wrong)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_two_half_hours_hold_the_six_calls():
    every = [calls.load(number) for number in calls.NUMBERS]
    assert [one.number for one in every] == list(calls.NUMBERS)
    assert sum(one.minutes for one in every[:4]) <= 20 and sum(one.minutes for one in every[4:]) <= 30
    for one in every:
        assert sum(check.seconds for check in one.checks) <= 60 * one.minutes + 135, one.title
    names = [check.name for one in every for check in one.checks]
    assert len(set(names)) == len(names)


def test_without_a_gpu_a_check_ends_where_it_asks_for_one(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(NoCudaDeviceError, match=NO_DEVICE):
        Bench(tmp_path).cuda()


CHECKS = {check.name: check for number in calls.NUMBERS for check in calls.load(number).checks}
# It binds Ray's ports; of checks that differ in settings alone one is enough: all settings are checked below.
LEFT_OUT = {"system", "0.6B untied", *list(call_5.RUNS)[1:]}


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - LEFT_OUT))
@pytest.mark.with_presets("grpo")
def test_every_check_comes_as_far_as_a_processor_can(name, tmp_path):
    """What it plans, writes and collects is right, before a GPU is paid for."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    # Some prepare the environment, as the launcher does for its own process.
    with mock.patch.dict("os.environ"), pytest.raises(NoCudaDeviceError):
        CHECKS[name].run(Bench(tmp_path))


def test_what_three_steps_are_judged_by():
    def step(number: int, tokens: float, **more: float | None) -> Step:
        return Step(number, {"batch/tokens": tokens, **more}, {"step": 1.0})

    gap = {"rollout/log_probs_diff_mean": 0.02}
    call_5.judge([step(1, 10, **gap), step(2, 10)], gaps=True)
    call_5.judge([step(1, 10)], gaps=False)
    for wrong, said in (
        ([step(1, 0, **gap)], r"steps \[1\] trained no token"),
        ([step(1, 10)], "no step compared"),
        ([step(1, 10, **{"rollout/log_probs_diff_mean": 0.2})], "differ by 0.200 nats"),
        ([step(1, 10, **gap, **{"actor/grad_norm": None})], "not finite"),
    ):
        with pytest.raises(CheckError, match=said):
            call_5.judge(wrong, gaps=True)


RUNS = {
    "demo": training.overrides(*call_4.DEMO),
    **{name: call_5.settings(name) for name in call_5.RUNS},
}


HERE = [name for name, words in RUNS.items() if has_presets(words)]


@pytest.mark.parametrize(
    ("name", "flash"), [*((name, False) for name in HERE), ("demo", True), (next(iter(call_5.RUNS)), True)]
)
def test_every_run_is_one_that_the_checks_accept(name, flash, monkeypatch, tmp_path):
    monkeypatch.setattr(training, "installed", lambda package: "2.8.3" if flash else None)
    own = training.overrides(*call_4.DEMO) if name == "demo" else call_5.settings(name)
    assert any("attn_implementation" in one for one in own) is not flash
    check_values([*own, f"marsrl.run.output_root={tmp_path}"])


@pytest.mark.parametrize("tied", [True, False])
def test_random_models_have_the_shape_that_is_asked_for(tmp_path, tied):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = random_model(tmp_path, SMALL, tied=tied)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert str(model.dtype) == "torch.bfloat16"
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.decode([model.config.vocab_size - 1]) == f"word{model.config.vocab_size - 1} "
    assert tokenizer.decode(tokenizer.encode("Compute 7+5-3")) == "Compute 7+5-3"
    shape = shape_from_config(json.loads((folder / "config.json").read_text()))
    assert shape is not None and shape.tied is tied
    assert shape.parameters == sum(one.numel() for one in model.parameters())


def test_the_shape_is_that_of_qwen3_06b():
    shape = shape_from_config({**QWEN3_06B, "model_type": "qwen3", "tie_word_embeddings": True})
    assert shape is not None and shape.parameters == 596_049_920


def summary(before: float, after: float) -> dict:
    return {
        when: {name: {"mean": mean} for name in EXPECTED}
        for when, mean in (("before", before), ("after", after))
    }


def test_the_demo_on_a_gpu_is_judged_by_the_readme():
    text = (ROOT / "README.md").read_text()
    labels = {name: name.replace("_", " ").capitalize() for name in EXPECTED}
    shown = {
        name: line for name, label in labels.items() for line in re.findall(rf"^ +{label} .*", text, re.M)
    }
    assert shown.keys() == EXPECTED.keys()
    for name, line in shown.items():
        before, after = EXPECTED[name]
        numbers = [float(one) for one in re.findall(r"(?<![n=\d])(\d+\.\d)", line)]
        (low, mean, high), (low2, mean2, high2) = before, after
        assert numbers[:6] == [mean, low, high, mean2, low2, high2], line
    good = {**summary(0, 0)}
    good["before"] = {name: {"mean": EXPECTED[name][0][1] / 100} for name in EXPECTED}
    good["after"] = {name: {"mean": 0.975} for name in EXPECTED}
    judge(good)
    assert rows_of(good)[0][0] in JUDGED
    for when, mean in (("before", 0.30), ("after", 0.60)):
        wrong = {key: dict(value) for key, value in good.items()}
        wrong[when]["solver_accuracy"] = {"mean": mean}
        with pytest.raises(CheckError, match=f"solver_accuracy {when} training"):
            judge(wrong)


def test_the_reward_of_random_models_differs_within_a_group():
    from types import SimpleNamespace

    values = [Parity().score(SimpleNamespace(text=f"text {n}")).value for n in range(200)]
    assert set(values) == {0.0, 1.0} and 0.35 < sum(values) / 200 < 0.65
