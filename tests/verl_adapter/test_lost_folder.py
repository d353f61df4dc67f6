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

from scripted_trainer import ScriptedTrainer, batches

from marsrl_verl.reporting.run_folder import MARKER, FolderLostError, RunFolder
from marsrl_verl.reporting.storage import StorageError
from marsrl_verl.verl_adapter.checkpoint.files import newest_complete
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


@pytest.mark.parametrize("save_freq", [1, 100])
def test_a_deleted_folder_ends_the_run_with_its_weights_saved(tmp_path, save_freq):
    whole = WithFolder(tmp_path / "whole", 6, save_freq=100)
    whole.fit()
    folder = tmp_path / "a"
    trainer = WithFolder(folder, 6, lambda: shutil.rmtree(folder / "run"), save_freq=save_freq)
    with pytest.raises(FolderLostError, match=f"{folder}/run was deleted or moved"):
        trainer.fit()
    assert trainer.global_steps == 3
    assert newest_complete(folder / "run/checkpoints") == 3
    resumed = WithFolder(folder, 6, save_freq=100)
    resumed.fit()
    assert resumed.actor_rollout_wg.steps == whole.actor_rollout_wg.steps == [1, 2, 3, 4, 5, 6]
    assert batches(folder / "batches") == batches(tmp_path / "whole/batches")


@pytest.mark.parametrize(("taken", "saved"), [(False, 3), (True, None)])
def test_a_run_that_is_stopped_makes_a_deleted_folder_anew_but_touches_no_other_runs(tmp_path, taken, saved):
    def stopped():
        shutil.rmtree(tmp_path / "run")
        if taken:
            (tmp_path / "run").mkdir()
            other = '{"format_version": 1, "created": "2020-01-01T00:00:00+00:00"}'
            (tmp_path / "run" / MARKER).write_text(other)
        raise StopRequested(signal.SIGTERM)

    with pytest.raises(StopRequested):
        WithFolder(tmp_path, 6, stopped, save_freq=100).fit()
    assert newest_complete(tmp_path / "run/checkpoints") == saved


@pytest.mark.parametrize(
    ("error", "told", "saved"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "run can't be written: there is no space left", 3),
        (FileNotFoundError(2, "x"), "x", None),
    ],
    ids=["full disk", "no fault of the disk"],
)
def test_a_full_disk_ends_the_run_with_its_weights_saved_and_other_errors_are_raised_as_they_are(
    tmp_path, error, told, saved
):
    def happens():
        raise error

    with pytest.raises(StorageError if saved else FileNotFoundError, match=told):
        WithFolder(tmp_path, 6, happens, save_freq=100).fit()
    assert newest_complete(tmp_path / "run/checkpoints") == saved
