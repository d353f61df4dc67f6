"""`main_eval`'s own words, and what they stand for."""

from __future__ import annotations

import pytest
from test_resume_checks import complete

from marsrl_verl.config.application import main
from marsrl_verl.config.command_line import EVALUATE, evaluating, parse_arguments
from marsrl_verl.settings.issues import ConfigError


def words(*argv: str) -> tuple[str, ...]:
    return evaluating(parse_arguments(list(argv))).overrides


@pytest.fixture
def trained(tmp_path):
    """A run's folder with two checkpoints, of which the later one was interrupted."""
    folder = tmp_path / "trained"
    complete(folder / "checkpoints" / "global_step_2")
    (folder / "checkpoints" / "global_step_4").mkdir()
    (folder / "run.json").write_text('{"format_version": 1}')
    return folder


def test_a_runs_folder_stands_for_its_newest_complete_checkpoint(trained):
    step = trained / "checkpoints" / "global_step_2"
    expected = (
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={step}",
        "trainer.val_only=true",
    )
    assert words(f"checkpoint={trained}") == words(f"checkpoint={step}") == expected


def test_nothing_is_trained_whatever_is_said():
    assert words("trainer.val_only=false", "algo=grpo")[-1] == "trainer.val_only=true"


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="The run has no complete checkpoint"):
        words(f"checkpoint={tmp_path}")


def test_benchmarks_are_a_list_of_names():
    node = "++marsrl.evaluation.benchmarks"
    for text in ("gsm8k,aime24", "[gsm8k, aime24]"):
        assert words(f"benchmarks={text}")[:3] == (
            f"{node}.gsm8k={{}}",
            f"{node}.aime24={{}}",
            "marsrl.evaluation.only=[gsm8k,aime24]",
        )


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path, capsys):
    status = main(["cluster=cpu", f"checkpoint={tmp_path / 'nowhere'}"], lambda config: 0, EVALUATE)
    said = capsys.readouterr().err
    assert status == 2 and f"checkpoint = {tmp_path / 'nowhere'}" in said and "no such folder" in said


def test_a_folder_of_runs_is_refused_and_its_runs_are_named(trained):
    with pytest.raises(ConfigError) as refused:
        words(f"checkpoint={trained.parent}")
    (problem,) = refused.value.problems
    assert "It has no run.json" in problem.what and f"Runs in it: {trained}" in problem.fix


def test_help_is_of_the_command(capsys):
    assert main(["--help"], lambda config: 0, EVALUATE) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "usage: python -m recipe.marsrl.main_eval" in said and "nothing is trained" in said
    assert "checkpoint=" in said and "benchmarks=" in said


def test_the_run_remembers_the_command(tmp_path, monkeypatch):
    launched = []
    monkeypatch.chdir(tmp_path)
    argv = ["cluster=cpu", "name=alone", "trainer.n_gpus_per_node=1"]
    assert main(argv, lambda config: launched.append(config) or 0, EVALUATE) == 0
    (config,) = launched
    assert config.trainer.val_only
    assert "recipe.marsrl.main_eval" in config.marsrl.run.command
    assert list(config.marsrl.run.command)[-3:] == argv
