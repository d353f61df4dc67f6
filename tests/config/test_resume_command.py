"""The command that a run which ended early prints is taken by the checks."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from messages import accepted
from omegaconf import OmegaConf
from test_resume_checks import complete

from marsrl_verl.reporting.record import HIDDEN, recorded, resume_command

DISABLE = "trainer.resume_mode=disable"
VARIABLES = "ray_kwargs.ray_init.runtime_env.env_vars"


@pytest.fixture
def ended(run, tmp_path):
    """The printed lines of a run that ended, and the outcome of the command among them."""

    def end(*argv: str, results: bool = True, saved: bool = False, alone: bool = False):
        first = accepted(run, "cluster=cpu", "name=ended", *argv)
        folder = tmp_path / "outputs" / "ended"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text('{"format_version": 1}')
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(recorded(first.launched)))
        if results:
            path = folder / ("evaluations/answers.jsonl" if alone else "metrics.jsonl")
            path.parent.mkdir(exist_ok=True)
            path.write_text("{}\n")
        if saved:
            complete(folder / "checkpoints" / "global_step_4")
        lines = resume_command(first.launched, saved)
        words = shlex.split(lines[0])
        return lines, run(*words[words.index("recipe.marsrl.main_marsrl") + 1 :])

    return end


@pytest.fixture
def other(run, tmp_path):
    """A checkpoint of another run with the same settings."""
    folder = tmp_path / "outputs" / "other"
    launched = run("cluster=cpu", "name=other").launched
    complete(folder / "checkpoints" / "global_step_2")
    (folder / "run.json").write_text('{"format_version": 1}')
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(recorded(launched)))
    return folder / "checkpoints" / "global_step_2"


@pytest.mark.parametrize(
    ("argv", "results"),
    [((), False), ((DISABLE,), True), ((f"++{DISABLE}",), False), (("marsrl.run.if_exists=replace",), True)],
)
def test_without_a_checkpoint(ended, argv, results):
    lines, again = ended(*argv, results=results)
    assert again.status == 0, again.err
    assert again.launched.marsrl.run.if_exists == "resume" and again.launched.trainer.resume_mode == "auto"
    assert lines[0].count("if_exists=") == 1


def test_with_a_checkpoint(ended):
    _, again = ended(DISABLE, saved=True)
    assert again.status == 0, again.err
    assert again.launched.trainer.resume_mode == "auto"


@pytest.mark.parametrize("saved", [False, True])
def test_a_run_that_began_from_another_ones_checkpoint(ended, other, saved):
    where = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={other}")
    lines, again = ended(*where, saved=saved)
    assert again.status == 0, again.err
    assert (str(other) in lines[0]) is not saved


@pytest.mark.parametrize(
    ("typed", "results"), [((), False), ((), True), (("marsrl.run.if_exists=replace",), False)]
)
def test_an_evaluation_alone_goes_on_with_its_answers(ended, other, typed, results):
    where = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={other}")
    _, again = ended("trainer.val_only=true", *where, *typed, results=results, alone=True)
    assert again.status == 0, again.err
    assert again.launched.trainer.resume_from_path == str(other)
    expected = "resume" if results else "replace" if typed else "fail"
    assert again.launched.marsrl.run.if_exists == expected


def test_values_of_variables_are_asked_for_again(ended):
    lines, again = ended(
        f"+{VARIABLES}.NCCL_IB_DISABLE=1",
        f"+{VARIABLES}.WANDB_API_KEY=se\\,cret",
        "ray_kwargs.ray_init.num_cpus=16",
    )
    assert again.status == 0, again.err
    assert again.launched.ray_kwargs.ray_init.num_cpus == 16
    assert again.launched.ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY == HIDDEN
    assert lines[1] == "Values of NCCL_IB_DISABLE, WANDB_API_KEY are not written down: set them again."
    assert "cret" not in lines[0]


def test_a_node_with_variables_is_an_empty_one(ended):
    lines, again = ended("++ray_kwargs.ray_init.runtime_env={env_vars: {KEY: secret}}", saved=True)
    assert again.status == 0, again.err
    assert lines[1] == "Values of ray_kwargs.ray_init.runtime_env are not written down: set them again."
    assert again.launched.ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM == "cpu"


def test_it_begins_with_the_path_of_the_users_modules(ended, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "my methods:/else")
    lines, again = ended()
    assert lines[0].startswith("PYTHONPATH='my methods:/else' python -m recipe.marsrl.main_marsrl ")
    assert again.status == 0, again.err


def test_nothing_is_asked_for_where_nothing_is_hidden(ended, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    lines, _ = ended()
    assert len(lines) == 1 and Path(shlex.split(lines[0])[0]).name == "python"
