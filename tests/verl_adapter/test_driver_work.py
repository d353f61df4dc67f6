"""What the driver does is named by a function; how a run ends is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter.run import driver
from marsrl_verl.verl_adapter.stop_signals import StopRequested
from marsrl_verl.verl_adapter.terminal import chatter_log, library_output_to

seen: list[tuple] = []


def note(config, session):
    seen.append((config, session))


def test_a_run_trains_unless_other_work_is_named(monkeypatch):
    trained = []
    monkeypatch.setattr(driver, "train", lambda config, session=None: trained.append((config, session)))
    driver.do(driver.TRAIN, {"a": 1})
    assert trained == [({"a": 1}, None)]


def test_other_work_gets_configuration_and_session():
    driver.do(f"{__name__}:note", {"a": 1}, Path("/session"))
    assert seen == [({"a": 1}, Path("/session"))]


# --- a run that does not finish -------------------------------------------------------------------------

COMMAND = ["python", "-m", "recipe.marsrl.main_marsrl", "name=a b", "marsrl.run.existing=fail"]


@pytest.fixture
def config(tmp_path):
    """Of a run whose folder is there, with a checkpoint after step 4."""
    (tmp_path / "run.json").write_text("{}")
    sealed = tmp_path / "checkpoints/global_step_4"
    sealed.mkdir(parents=True)
    (sealed / "sealed.json").write_text("{}")
    run = {"output_dir": str(tmp_path), "command": COMMAND, "worker_logs": True}
    trainer = {
        "default_local_dir": str(tmp_path / "checkpoints"),
        "save_freq": 2,
        "val_only": False,
        "resume_mode": "auto",
    }
    return OmegaConf.create({"marsrl": {"run": run}, "trainer": trainer})


@pytest.fixture
def train_with(monkeypatch):
    """The status of a run that an error ends."""
    monkeypatch.setattr(driver, "END_SECONDS", 3600.0)

    def train(config, error) -> int:
        def fail(_config):
            raise error

        monkeypatch.setattr(driver, "_train", fail)
        with pytest.raises(SystemExit) as end:
            driver.train(config)
        return end.value.code

    return train


def test_an_error_is_a_sentence_and_the_traceback_is_in_the_runs_folder(config, train_with, tmp_path, capsys):
    assert train_with(config, EngineUnavailableError("vLLM server 0 is gone")) == 1
    said = capsys.readouterr()
    assert "The run ended: vLLM server 0 is gone\n" in said.out
    assert "Traceback (most" not in said.out + said.err
    assert "To go on from step 4:\n  python -m recipe.marsrl.main_marsrl 'name=a b' " in said.out
    assert "marsrl.run.existing=resume" in said.out
    log = (tmp_path / "error.log").read_text()
    assert "Traceback (most recent call last)" in log and "EngineUnavailableError" in log


def test_an_unexpected_error_is_named(config, train_with, capsys):
    assert train_with(config, ZeroDivisionError("division by zero\nsecond line")) == 1
    assert "The run ended: ZeroDivisionError: division by zero\n" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "name", "status"), [(15, "SIGTERM", 143), (2, "SIGINT", 130)])
def test_a_signal_has_its_own_status_and_no_traceback(
    config, train_with, tmp_path, capsys, number, name, status
):
    assert train_with(config, StopRequested(number)) == status
    said = capsys.readouterr().out
    assert f"The run was ended by {name}." in said
    assert "To go on from step 4" in said
    assert not (tmp_path / "error.log").exists()


def test_a_run_without_a_checkpoint_says_so(config, train_with, tmp_path, capsys):
    (tmp_path / "checkpoints/global_step_4/sealed.json").unlink()
    train_with(config, StopRequested(15))
    assert "There is no checkpoint yet.\nTo start again:" in capsys.readouterr().out
    config.trainer.save_freq = -1
    train_with(config, StopRequested(15))
    assert "trainer.save_freq = -1" in capsys.readouterr().out


def test_before_the_runs_folder_is_there_the_traceback_goes_to_the_log(config, train_with, tmp_path, capsys):
    (tmp_path / "run.json").unlink()
    train_with(config, ValueError("no model"))
    said = capsys.readouterr()
    assert "Traceback (most recent call last)" in said.err and "Traceback: above\n" in said.out
    assert not (tmp_path / "error.log").exists()


def test_the_log_is_named(config, train_with, tmp_path, capfd):
    (tmp_path / "run.json").unlink()
    log = tmp_path / "driver.log"
    with library_output_to(log):
        train_with(config, ValueError("no model"))
    assert f"Traceback: {log}\n" in capfd.readouterr().out
    assert chatter_log() is None, "this process prints to the terminal again"


def test_an_evaluation_alone_does_not_go_on(config, train_with, capsys):
    config.trainer.val_only = True
    train_with(config, StopRequested(15))
    said = capsys.readouterr().out
    assert "To start the evaluation again:\n  python -m" in said
    assert "existing=resume" not in said and "Saved" not in said


def test_a_process_that_cannot_end_in_order_is_ended(monkeypatch):
    ended = []
    monkeypatch.setattr(driver.os, "_exit", ended.append)
    driver._end_after(0.0, 7).join(10)
    assert ended == [7]
