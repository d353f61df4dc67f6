"""A full disk and a deleted folder in the midst of a run: the weights are saved where there is a place, and
the run says what happened."""

from __future__ import annotations

import errno
import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="the trainer is verl's")
pytest.importorskip("vllm", reason="verl's trainer imports its rollout")

from omegaconf import OmegaConf
from scripted_trainer import ScriptedTrainer, batches

from marsrl_verl.reporting.run_folder import MARKER, FolderLostError, RunFolder
from marsrl_verl.reporting.storage import StorageError
from marsrl_verl.verl_adapter.checkpoint.sealed import newest_sealed
from marsrl_verl.verl_adapter.run.run_end import report_end
from marsrl_verl.verl_adapter.stop_signals import StopRequested


class WithFolder(ScriptedTrainer):
    """Writes metrics into a real folder, and something happens in step 3."""

    def __init__(self, folder: Path, steps: int, happens=lambda: None, **settings) -> None:
        (folder / "batches").mkdir(parents=True, exist_ok=True)
        super().__init__(folder / "batches", steps, **settings)
        self.config.trainer.default_local_dir = str(folder / "run/checkpoints")
        run_folder = self.observer.folder = RunFolder.create(folder / "run", "resume")
        run_folder.write_config("a: 1\n")
        self.continues_run = run_folder.resumed
        self.observer.flush = run_folder.require
        self.happens = happens

        def record(step, metrics, timing):
            if step == 3:
                self.happens()
            run_folder.require()
            run_folder.metrics.append(step, {"x": 1.0})

        self.observer.record = record


def raises(error):
    def happen():
        raise error

    return happen


@pytest.mark.parametrize("save_freq", [1, 100])
def test_a_deleted_folder_ends_the_run_with_its_weights_saved(tmp_path, save_freq):
    whole = WithFolder(tmp_path / "whole", 6, save_freq=100)
    whole.fit()
    folder = tmp_path / "a"
    trainer = WithFolder(folder, 6, lambda: shutil.rmtree(folder / "run"), save_freq=save_freq)
    with pytest.raises(FolderLostError, match=f"{folder}/run was deleted or moved"):
        trainer.fit()
    assert trainer.global_steps == 3
    assert newest_sealed(folder / "run/checkpoints") == 3
    resumed = WithFolder(folder, 6, save_freq=100)
    resumed.fit()
    assert resumed.actor_rollout_wg.steps == whole.actor_rollout_wg.steps == [1, 2, 3, 4, 5, 6]
    assert batches(folder / "batches") == batches(tmp_path / "whole/batches")


def test_a_deleted_folder_is_made_anew_for_the_weights_of_a_run_that_is_stopped(tmp_path):
    def stopped():
        shutil.rmtree(tmp_path / "run")
        raise StopRequested(signal.SIGTERM)

    trainer = WithFolder(tmp_path, 6, stopped, save_freq=100)
    with pytest.raises(StopRequested):
        trainer.fit()
    assert newest_sealed(tmp_path / "run/checkpoints") == 3


def test_another_runs_folder_in_its_place_is_not_touched_by_a_run_that_is_stopped(tmp_path):
    def stopped():
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / MARKER).write_text(
            '{"format_version": 1, "created": "2020-01-01T00:00:00+00:00"}'
        )
        raise StopRequested(signal.SIGTERM)

    trainer = WithFolder(tmp_path, 6, stopped, save_freq=100)
    with pytest.raises(StopRequested):
        trainer.fit()
    assert newest_sealed(tmp_path / "run/checkpoints") is None


def test_a_full_disk_ends_the_run_with_its_weights_saved_elsewhere(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    trainer = WithFolder(tmp_path, 6, raises(full), save_freq=100)
    with pytest.raises(StorageError, match=f"{tmp_path}/run can't be written: there is no space left"):
        trainer.fit()
    assert newest_sealed(tmp_path / "run/checkpoints") == 3


def test_an_error_that_is_no_disks_is_raised_as_it_is(tmp_path):
    trainer = WithFolder(tmp_path, 6, raises(FileNotFoundError(2, "x")), save_freq=100)
    with pytest.raises(FileNotFoundError):
        trainer.fit()
    assert newest_sealed(tmp_path / "run/checkpoints") is None


def end_of(tmp_path: Path) -> OmegaConf:
    return OmegaConf.create(
        {
            "marsrl": {"run": {"output_dir": str(tmp_path), "command": ["train"]}},
            "trainer": {"default_local_dir": str(tmp_path / "checkpoints"), "val_only": False, "save_freq": 1,
                        "resume_mode": "auto"},
        }
    )  # fmt: skip


def test_the_end_is_told_in_one_sentence_where_error_log_has_no_room(tmp_path, capsys, monkeypatch):
    RunFolder.create(tmp_path / "run")
    real = Path.open

    def no_room(self, mode="r", *arguments, **more):
        if "a" in mode or "w" in mode:
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return real(self, mode, *arguments, **more)

    monkeypatch.setattr(Path, "open", no_room)
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "run/metrics.jsonl"))
    assert report_end(end_of(tmp_path / "run"), error) == 1
    shown = capsys.readouterr()
    ended, traceback, *_ = shown.out.strip().splitlines()
    assert ended.startswith(
        f"The run ended: {tmp_path}/run/metrics.jsonl can't be written: there is no space left."
    )
    assert traceback == "Traceback: above" and "No space left on device" in shown.err
