"""Loggers write into the run's folder, and hear no keys."""

from __future__ import annotations

import json
import os

import pytest
from marsrl_script import ScriptedEngine
from omegaconf import OmegaConf
from scripted_engine import Reply

from marsrl_verl.core.prompts import ProblemPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.evaluation.suite import evaluate
from marsrl_verl.verl_adapter.trainer import tracking
from marsrl_verl.verl_adapter.trainer.tracking import logger_variables, start_tracking


def config(tmp_path, *names):
    return OmegaConf.create(
        {
            "trainer": {
                "logger": list(names),
                "project_name": "p",
                "experiment_name": "e",
                "log_val_generations": 2,
            },
            "marsrl": {"run": {"output_dir": str(tmp_path / "run")}},
            "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"MY_KEY": "s3cr3t"}}}},
        }
    )


def starting(monkeypatch, start):
    """Loggers are started by a function of the arguments."""

    def begin(self, **arguments):
        self.logger = {}
        start(arguments)

    monkeypatch.setattr(tracking.Tracking, "__init__", begin)


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """A copy of the environment without places of loggers, in an empty folder."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    continued = [variable for pair in tracking._CONTINUED.values() for variable in pair]
    for name in (*logger_variables(tmp_path), *continued):
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
    starting(monkeypatch, lambda arguments: heard.append(arguments["config"]))
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
    starting(monkeypatch, lambda given: started.append(given["default_backend"]))
    start_tracking(automatic)
    assert started == [["wandb"]] and automatic.trainer.logger == ["wandb"]


def test_without_a_login_metrics_stay_in_the_folder(automatic, environment, tmp_path):
    environment.pop("WANDB_API_KEY")
    environment["HOME"] = str(tmp_path / "nobody")
    start_tracking(automatic)
    assert automatic.trainer.logger == []


def test_a_tracker_that_nobody_named_does_not_end_the_run(automatic, monkeypatch, tmp_path):
    def start(arguments):
        if "wandb" in arguments["default_backend"]:
            raise ConnectionError("no route to api.wandb.ai")

    said = []
    monkeypatch.setattr(tracking._log, "warning", lambda text, *values: said.append(text % values))
    starting(monkeypatch, start)
    start_tracking(automatic)
    assert automatic.trainer.logger == []
    assert len(said) == 1 and "wandb can't be started (no route" in said[0]
    with pytest.raises(ConnectionError):
        start_tracking(config(tmp_path, "wandb"))


def test_a_resumed_run_goes_on_in_wandb_and_a_replaced_one_does_not(tmp_path, environment, monkeypatch):
    seen = []
    names = ("WANDB_RUN_ID", "WANDB_RESUME", "SWANLAB_RUN_ID", "SWANLAB_RESUME")
    starting(monkeypatch, lambda _: seen.append([environment.get(name) for name in names]))
    for place in ("run", "run", "other"):
        for name in names:
            environment.pop(name, None)  # a new process
        (tmp_path / place).mkdir(exist_ok=True)
        one = config(tmp_path, "wandb", "swanlab")
        one.marsrl.run.output_dir = str(tmp_path / place)
        start_tracking(one)
    first, again, other = seen
    assert first == again and first[1] == first[3] == "allow" and [len(first[0]), len(first[2])] == [21, 21]
    assert not {first[0], first[2]} & {other[0], other[2]}
    environment["WANDB_RUN_ID"] = "mine"
    environment.pop("WANDB_RESUME")
    start_tracking(config(tmp_path, "wandb"))
    assert seen[-1][:2] == ["mine", "allow"]
    assert json.loads((tmp_path / "run" / tracking.RUN_IDS).read_text())["wandb"] == "mine"


def test_an_evaluation_is_logged_with_what_its_first_runs_said(tmp_path, environment, monkeypatch):
    tables, means = [], []
    starting(monkeypatch, lambda _: None)
    monkeypatch.setattr(
        tracking.ValidationGenerationsLogger, "log", lambda self, *given: tables.append(given)
    )
    monkeypatch.setattr(tracking.Tracking, "log", lambda self, data, step: means.append((data, step)))
    problems = [Problem(f"v{i}", "1+1?", "2") for i in range(5)]
    engine = ScriptedEngine(lambda item, k: Reply("\\boxed{2}"))
    solver = SingleRole("solver", ProblemPrompts(solver_instruction=""))
    result = evaluate(engine, problems, solver, {"solver": Sampling(50, 60)}, tag="step_3", step=3)
    (tmp_path / "run").mkdir()
    start_tracking(config(tmp_path, "file")).log_evaluation(result, 3)
    row = ["1+1?", "[solver]\n\\boxed{2}", 1.0]
    assert tables == [(["file"], [row, row], 3)]
    ((data, step),) = means
    assert step == 3 and data["val/solver_accuracy"] == 1.0
    start_tracking(config(tmp_path)).log_evaluation(result, 3)
    assert len(means) == len(tables) == 1, "without loggers nothing is logged"
