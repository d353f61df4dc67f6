"""Rollouts that are graded again are worth what they were."""

from __future__ import annotations

import asyncio
import json

import pytest
from recorded_runs import PRESETS, RUNS, recorded

from marsrl_verl.replay.rescore import Rescorer
from marsrl_verl.replay.rescore_command import TRAINING, main, rescore_run
from marsrl_verl.replay.settings import recorded_config
from marsrl_verl.reporting.rollout_files import read_lines, rollout_files
from marsrl_verl.settings.issues import ConfigError


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.with_presets(PRESETS.get(name, name))) for name in RUNS]
)
def run(tmp_path, request):
    """A recorded run of each method."""
    return recorded(tmp_path, request.param)


def rescored(run, *words):
    rescorer = Rescorer(recorded_config(run, list(words)))
    try:
        return asyncio.run(rescore_run(run, rescorer))
    finally:
        rescorer.close()


def test_the_runs_own_rewards_are_found_again(run):
    lines = [line for path in rollout_files(run / "rollouts") for line in read_lines(path)]
    found = rescored(run)
    assert sum(len(one.new) for one in found.values()) == len(lines) > 0
    assert {(of, role, stage) for of, role, stage in found} == {
        (TRAINING, line["role"], line["stage"]) for line in lines
    }
    for name, one in found.items():
        assert (one.changed, one.without, one.failed) == ([], [], 0), name
        assert one.new == pytest.approx(one.recorded, abs=1e-9)
        assert len(set(one.new)) > 1, f"{name}: all are equal, which shows nothing"


ALL_RIGHT = "target=recorded_runs:AllRight"


@pytest.mark.with_presets("marsrl")
def test_a_verdict_is_graded_by_the_solutions_reward_of_now(tmp_path, capsys):
    run = recorded(tmp_path, "marsrl")
    assert main([str(run), f"marsrl.reward.solver.{ALL_RIGHT}", "--examples", "1"]) == 0
    changed = [json.loads(line) for line in (run / "rescored.jsonl").open()]
    assert {line["stage"] for line in changed} == {"solver", "verifier_1"}
    for line in changed:
        if line["role"] == "verifier":  # all of them are right now
            assert (line["recorded"], line["new"]) == ((0, 1) if "Correct" in line["final"][-7:] else (1, 0))
        else:
            assert (line["recorded"], line["new"]) == (0, 1)
    out = capsys.readouterr().out
    assert "0.5000  1.0000" in out and f"{len(changed)} changed: {run / 'rescored.jsonl'}" in out
    assert "0 → 1, answer any, reference" in out
    solutions = sum(line["role"] == "solver" for line in changed)
    assert f"… {solutions - 1} more (training, solver at solver)" in out


@pytest.mark.with_presets("rema_single_turn")
def test_a_plans_credit_follows_its_solutions(tmp_path):
    found = rescored(recorded(tmp_path, "rema_single_turn"), f"marsrl.reward.reasoning.{ALL_RIGHT}")
    plans = [one for (_, role, _), one in found.items() if role == "meta_thinking"]
    assert {value for one in plans for value in one.new} < {0.0, 1.0, -1.0} and plans
    assert any(one.changed for one in plans)


@pytest.mark.with_presets("marsrl")
def test_an_option_is_for_the_roles_without_a_reward_of_their_method(tmp_path):
    run = recorded(tmp_path, "marsrl")
    config = recorded_config(run, ["reward=qa", "marsrl.reward.solver.kwargs.a=1"])
    named = {role: one.target.rpartition(":")[2] for role, one in config.marsrl.reward.items()}
    assert named == {"solver": "QAGrader", "verifier": "VerdictReward", "corrector": "QAGrader"}
    assert config.marsrl.reward.solver.kwargs == {"a": 1}


@pytest.mark.with_presets("arpo_random")
def test_an_option_without_effect_is_refused(tmp_path):
    run = recorded(tmp_path, "arpo")
    with pytest.raises(
        ConfigError, match=r"(?s)rewards of their method's own.*marsrl\.reward\.solver\.target"
    ):
        recorded_config(run, ["reward=qa"])


@pytest.mark.with_presets("marsrl")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.total_training_steps=1", "No grade of recorded rollouts depends on it"),
        ("reward=nothing", "has no such option"),
        ("marsrl.reward.judge.target=recorded_runs:AllRight", "no such role"),
        ("marsrl.reward.solver.target=nowhere:Reward", "nowhere"),
        ("marsrl.reward.default.target=x:Y", "Name the role: marsrl.reward.<role>"),
    ],
)
def test_refused(tmp_path, capsys, word, message):
    run = recorded(tmp_path, "marsrl")
    assert main([str(run), word]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (run / "rescored.jsonl").exists()


def test_a_folder_that_is_no_runs(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "is no run's folder" in capsys.readouterr().err


@pytest.mark.with_presets("rema")
def test_what_can_not_be_graded_again_says_why(tmp_path):
    run = recorded(tmp_path, "rema")
    (path,) = rollout_files(run / "rollouts")
    lines = [json.loads(line) for line in path.open()]
    for line in lines:
        del line["events"][-2]  # the last message
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    finished = sum(line["finish_reason"] == "stop" for line in lines)
    why = "played again, it asked shared for a message that is not on record"
    assert [one for stage in rescored(run).values() for one in stage.without] == [why] * finished != []


def test_a_record_with_former_names_of_settings_is_read(run):
    expected, path = recorded_config(run, []), run / "config.yaml"
    path.write_text(
        path.read_text().replace("if_exists:", "existing:").replace("fork_server:", "template_process:")
    )
    assert "if_exists" not in path.read_text()
    assert recorded_config(run, []) == expected
