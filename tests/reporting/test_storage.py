"""A disk that is full and a folder that is gone: what is said, and what is left."""

from __future__ import annotations

import errno
import shutil

import pytest

from marsrl_verl.reporting.metrics_log import read_metrics
from marsrl_verl.reporting.run_folder import FolderLostError, RunFolder, check_output_folder
from marsrl_verl.reporting.storage import StorageError, is_full, storage_error


def full(name: str | None = None) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", name)


def test_a_full_disk_is_named_with_what_is_free_and_what_to_do(tmp_path):
    found = storage_error(full(str(tmp_path / "a/b/metrics.jsonl")), tmp_path)
    assert str(found).startswith(
        f"{tmp_path}/a/b/metrics.jsonl can't be written: there is no space left. {tmp_path} has "
    )
    assert "free. Complete checkpoints are as they were. Make room, then continue" in str(found)
    assert str(storage_error(full(), tmp_path)).startswith(f"{tmp_path} can't be written")


def test_the_disk_is_found_behind_other_errors(tmp_path):
    try:
        try:
            raise full("x")
        except OSError as error:
            raise RuntimeError("could not log") from error
    except RuntimeError as error:
        assert "x can't be written" in str(storage_error(error, tmp_path))
    known = StorageError("known")
    assert storage_error(known, tmp_path) is known


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "no space left"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "error"),
        (errno.ESTALE, "stale"),
    ],
)
def test_other_faults_of_a_disk(tmp_path, number, words):
    assert words in str(storage_error(OSError(number, "x"), tmp_path))


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(2, "x"), ConnectionError("x")])
def test_what_is_no_fault_of_a_disk(tmp_path, error):
    assert storage_error(error, tmp_path) is None
    assert not is_full(error)


def run(path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write_config("a: 1\n")
    folder.metrics.append(1, {"x": 1.0})
    return folder


def test_a_folder_that_is_there_is_fine(tmp_path):
    folder = run(tmp_path / "run")
    folder.require()
    folder.metrics.append(2, {"x": 2.0})
    folder.metrics.close()
    folder.require()


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_a_lost_folder_is_noticed_and_made_anew(tmp_path, how):
    path = tmp_path / "run"
    folder = run(path)
    shutil.rmtree(path) if how == "deleted" else path.rename(tmp_path / "elsewhere")
    (path / "rollouts").mkdir(parents=True)  # as what writes a step's rollouts does
    with pytest.raises(FolderLostError, match="was deleted or moved while the run wrote into it") as lost:
        folder.require()
    assert not lost.value.taken
    folder.restore()
    folder.require()
    assert (path / "config.yaml").read_text() == "a: 1\n"
    check_output_folder(path, "resume")
    folder.metrics.append(2, {"x": 2.0})
    assert [one.step for one in read_metrics(folder.path)] == [2]


def test_deleted_metrics_are_noticed(tmp_path):
    folder = run(tmp_path / "run")
    folder.metrics.path.unlink()
    with pytest.raises(FolderLostError, match=r"metrics\.jsonl was deleted"):
        folder.require()


def test_another_run_in_its_place_is_left_alone(tmp_path):
    path = tmp_path / "run"
    folder = run(path)
    shutil.rmtree(path)
    path.mkdir()
    (path / "run.json").write_text('{"format_version": 1, "created": "later"}')
    with pytest.raises(FolderLostError, match="another run has taken its place") as lost:
        folder.require()
    assert lost.value.taken
