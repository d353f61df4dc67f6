"""A problem's way through its stages, in the terminal."""

from __future__ import annotations

import json
import shutil

import pytest
from recorded_runs import recorded

from marsrl_verl.replay.trace import main


def shown(capsys, run, *words):
    assert main([str(run), *words]) == 0
    return capsys.readouterr().out


@pytest.mark.with_presets("marsrl")
def test_stages_follow_what_they_were_built_from(tmp_path, capsys):
    run = recorded(tmp_path, "marsrl")
    (run / "trained").mkdir(exist_ok=True)
    trained = {"p11/solver/0#1": [[[2, -0.5], [9, 0.25]]]}
    (run / "trained" / "step_1.json").write_text(json.dumps(trained))
    out = shown(capsys, run, "--problem", "p11")
    headings = [line for line in out.splitlines() if ": group " in line]
    stages = [line.partition(":")[0] for line in headings]
    assert stages == sorted(stages, key=["solver", "verifier_1", "corrector_1", "verifier_2"].index)
    assert headings[0] == "solver: group p11/solver/0, 4 trajectories, step 1"
    assert headings[1].endswith("step 2, built from p11/solver/0#0")
    assert "#1 solver  reward 1  advantage -0.5 to +0.25  stop" in out
    assert "#0 solver  reward 0  stop" in out and "    \\boxed{20}" in out
    assert "Reference: 2" in out and "Correctness: Wrong" in out
    one = shown(capsys, run, "--problem", "p11", "--step", "1")
    assert [line for line in one.splitlines() if ": group " in line] == headings[:1]


@pytest.mark.with_presets("marsrl")
def test_what_a_later_step_trained_has_its_advantages(tmp_path, capsys):
    run = recorded(tmp_path, "marsrl")
    (run / "trained").mkdir(exist_ok=True)
    (run / "trained" / "step_2.json").write_text(json.dumps({"p11/solver/0#1": [[[9, 0.25]]]}))
    shutil.rmtree(run / "index", ignore_errors=True)
    out = shown(capsys, run, "--problem", "p11", "--step", "1")
    assert "#1 solver  reward 1  advantage +0.25  stop" in out and out.count("advantage") == 1


@pytest.mark.with_presets("arpo_random")
def test_calls_and_their_results_and_forks(tmp_path, capsys):
    out = shown(capsys, recorded(tmp_path, "arpo"), "--problem", "p11", "--step", "1")
    assert '    → calc({"sum": "0+2"}): ok, 0.00 s' in out
    assert "    │  <result>" in out and "    │ 2" in out
    assert "leaves p11/agent/0#" in out


@pytest.mark.with_presets("marsrl")
def test_text_is_text_and_is_cut(tmp_path, capsys):
    run = recorded(tmp_path, "marsrl")
    path = run / "rollouts" / "step_1.jsonl"
    lines = [json.loads(line) for line in path.open()]
    for line in lines:
        line["response"] = "\x1b[31m[bold]1[/bold]\n" * 9 + "end"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = shown(capsys, run, "--problem", "p10", "--step", "1", "--lines", "3")
    assert "\x1b" not in out and "    \\x1b[31m[bold]1[/bold]" in out
    assert "… 7 lines …" in out and "    end" in out
    whole = shown(capsys, run, "--problem", "p10", "--step", "1", "--lines", "0")
    assert "lines …" not in whole and whole.count("[bold]1") == 9 * 4


@pytest.mark.with_presets("marsrl")
def test_a_problem_that_is_not_there(tmp_path, capsys):
    run = recorded(tmp_path, "marsrl")
    assert main([str(run), "--problem", "nix"]) == 2
    assert "no rollouts of problem nix; some that it has: p10, p11, p12" in capsys.readouterr().err
    assert main([str(run), "--problem", "p11", "--step", "9"]) == 2
    assert "in step 9" in capsys.readouterr().err
