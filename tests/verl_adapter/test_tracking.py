"""Loggers write into the run's folder, and hear no keys."""

from __future__ import annotations

import json
import os

import pytest
from omegaconf import OmegaConf

from marsrl_verl.verl_adapter.trainer import tracking
from marsrl_verl.verl_adapter.trainer.tracking import logger_variables, start_tracking


def config(tmp_path, *names):
    return OmegaConf.create(
        {
            "trainer": {"logger": list(names), "project_name": "p", "experiment_name": "e"},
            "marsrl": {"run": {"output_dir": str(tmp_path / "run")}},
            "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"MY_KEY": "s3cr3t"}}}},
        }
    )


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """A copy of the environment without places of loggers, in an empty folder."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in logger_variables(tmp_path):
        os.environ.pop(name, None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return os.environ


def test_files_lie_in_the_folder_and_a_resume_keeps_them(tmp_path, environment):
    (tmp_path / "run").mkdir()
    for step in (1, 2):
        environment.pop("VERL_FILE_LOGGER_PATH", None)  # a new process
        loggers = start_tracking(config(tmp_path, "file", "tensorboard"))
        loggers.log({"a": 0.5}, step=step)
        loggers.finish()
    for step in (1, 2):
        (line,) = (tmp_path / "run" / f"verl_metrics.{step}.jsonl").read_text().splitlines()
        assert json.loads(line) == {"step": step, "data": {"a": 0.5}}
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2
    assert list((tmp_path / "here").iterdir()) == []


def test_what_the_user_has_set_counts_more(tmp_path, environment):
    environment["TENSORBOARD_DIR"] = str(tmp_path / "mine")
    start_tracking(config(tmp_path, "tensorboard")).finish()
    assert len(list((tmp_path / "mine").iterdir())) == 1


def test_without_loggers_nothing_is_set(tmp_path, environment):
    start_tracking(config(tmp_path))
    assert "WANDB_DIR" not in environment


def test_loggers_hear_no_keys(tmp_path, environment, monkeypatch):
    heard = []
    monkeypatch.setattr(tracking, "Tracking", lambda **arguments: heard.append(arguments["config"]))
    start_tracking(config(tmp_path))
    assert "s3cr3t" not in json.dumps(heard) and "MY_KEY" in json.dumps(heard)


@pytest.fixture
def automatic(tmp_path, environment, monkeypatch):
    """A configuration that names no loggers, and wandb with a key."""
    environment.pop("WANDB_MODE", None)
    environment["WANDB_API_KEY"] = "k"
    return config(tmp_path, "auto")


def test_wandb_is_started_where_it_can_be(automatic, monkeypatch):
    started = []
    monkeypatch.setattr(tracking, "Tracking", lambda **given: started.append(given["default_backend"]))
    start_tracking(automatic)
    assert started == [["wandb"]] and automatic.trainer.logger == ["wandb"]


def test_without_a_login_metrics_stay_in_the_folder(automatic, environment, tmp_path):
    environment.pop("WANDB_API_KEY")
    environment["HOME"] = str(tmp_path / "nobody")
    start_tracking(automatic)
    assert automatic.trainer.logger == []


def test_a_tracker_that_nobody_named_does_not_end_the_run(automatic, monkeypatch, tmp_path):
    def start(default_backend, **arguments):
        if "wandb" in default_backend:
            raise ConnectionError("no route to api.wandb.ai")

    said = []
    monkeypatch.setattr(tracking._log, "warning", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(tracking, "Tracking", start)
    start_tracking(automatic)
    assert automatic.trainer.logger == []
    assert len(said) == 1 and "wandb can't be started (no route" in said[0]
    with pytest.raises(ConnectionError):
        start_tracking(config(tmp_path, "wandb"))
