"""What the driver does is named by a function; signals are heard, and how a run ends is said."""

from __future__ import annotations

import errno
import os
import pickle
import signal
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marsrl_verl.rollout.generation import EngineUnavailableError
from marsrl_verl.verl_adapter import stop_signals
from marsrl_verl.verl_adapter.run import driver, template_run
from marsrl_verl.verl_adapter.stop_signals import StopRequested, stop_on_signals
from marsrl_verl.verl_adapter.terminal import chatter_log, library_output_to

seen: list[tuple] = []


def note(config, session):
    seen.append((config, session))


def test_a_run_trains_unless_other_work_is_named(monkeypatch):
    trained = []
    monkeypatch.setattr(driver, "train", lambda config, session: trained.append((config, session)))
    for work in (driver.TRAIN, f"{__name__}:note"):
        driver.do(work, {"a": 1}, Path("/session"))
    assert trained == seen == [({"a": 1}, Path("/session"))]


# --- signals --------------------------------------------------------------------------------------------


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_while_the_run_starts_a_signal_ends_it_at_once():
    with stop_on_signals(), pytest.raises(StopRequested) as stopped:
        terminate()
    assert stopped.value.status == 143


def test_a_deferred_signal_waits_for_the_next_check(capsys):
    with stop_on_signals(), stop_signals.deferred():
        stop_signals.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StopRequested, match="SIGINT") as stopped:
            stop_signals.check()
    assert stopped.value.status == 130


def test_the_second_signal_ends_the_process():
    pid = os.fork()
    if pid == 0:
        with stop_on_signals(), stop_signals.deferred():
            terminate()
            terminate()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_handlers_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS]
    with stop_on_signals():
        assert [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS] == before


def ray_init(**_connection) -> None:
    """As Ray's: it leaves a handler of its own, and is told to end."""
    signal.signal(signal.SIGTERM, lambda number, _frame: exit(number))
    terminate()


def test_rays_own_handler_does_not_stay():
    with stop_on_signals():
        with pytest.raises(StopRequested), stop_signals.while_ray_starts():
            ray_init()
        with pytest.raises(StopRequested):
            terminate()


# --- a run that does not finish -------------------------------------------------------------------------

COMMAND = ["python", "-m", "recipe.marsrl.main_marsrl", "name=a b", "marsrl.run.if_exists=fail"]


@pytest.fixture
def config(tmp_path):
    """Of a run whose folder is there, with a checkpoint after step 4."""
    (tmp_path / "run.json").write_text("{}")
    complete = tmp_path / "checkpoints/global_step_4"
    complete.mkdir(parents=True)
    (complete / "manifest.json").write_text("{}")
    run = {"output_dir": str(tmp_path), "command": COMMAND, "worker_logs": True}
    trainer = {
        "default_local_dir": str(tmp_path / "checkpoints"),
        "save_freq": 2,
        "val_only": False,
        "resume_mode": "auto",
    }
    return OmegaConf.create({"marsrl": {"run": run, "serve": {"enabled": False}}, "trainer": trainer})


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
    assert "marsrl.run.if_exists=resume" in said.out
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


@pytest.mark.parametrize(
    ("save_freq", "said"),
    [(2, "There is no checkpoint yet.\nTo start again:"), (-1, "trainer.save_freq = -1")],
)
def test_a_run_without_a_checkpoint_says_so(config, train_with, tmp_path, capsys, save_freq, said):
    (tmp_path / "checkpoints/global_step_4/manifest.json").unlink()
    config.trainer.save_freq = save_freq
    train_with(config, StopRequested(15))
    assert said in capsys.readouterr().out


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


def test_an_evaluation_alone_goes_on_with_its_answers(config, train_with, capsys):
    config.trainer.val_only = True
    train_with(config, StopRequested(15))
    said = capsys.readouterr().out
    assert "To go on with the evaluation:\n  python -m" in said
    assert "if_exists=resume" in said and "Saved" not in said


def test_a_server_is_started_again(config, train_with, capsys):
    config.trainer.val_only = config.marsrl.serve.enabled = True
    assert train_with(config, StopRequested(15)) == 143
    assert "To start the server again:\n  python -m" in capsys.readouterr().out


def test_a_process_that_cannot_end_in_order_is_ended(monkeypatch):
    ended = []
    monkeypatch.setattr(driver.os, "_exit", ended.append)
    driver._end_after(0.0, 7).join(10)
    assert ended == [7]


def test_a_signal_while_the_forked_driver_connects_has_its_own_status(config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ray.init", ray_init)
    payload = tmp_path / "payload"
    monkeypatch.setattr(template_run, "over_verls_variables", lambda config, runtime_env: runtime_env)
    payload.write_bytes(pickle.dumps((config, {"runtime_env": {}}, "module:function", {})))
    with pytest.raises(SystemExit) as end:
        template_run.drive(os.open(payload, os.O_RDONLY))
    assert end.value.code == 143 and "ended by SIGTERM" in capsys.readouterr().out


def test_a_full_disk_is_told_in_one_sentence_where_error_log_has_no_room(
    config, train_with, tmp_path, capsys, monkeypatch
):
    real = Path.open

    def no_room(self, mode="r", *arguments, **more):
        if "a" in mode or "w" in mode:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, mode, *arguments, **more)

    monkeypatch.setattr(Path, "open", no_room)
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "metrics.jsonl"))
    assert train_with(config, error) == 1
    shown = capsys.readouterr()
    ended, traceback, *_ = shown.out.strip().splitlines()
    assert ended.startswith(
        f"The run ended: {tmp_path}/metrics.jsonl can't be written: there is no space left."
    )
    assert traceback == "Traceback: above" and "No space left on device" in shown.err
