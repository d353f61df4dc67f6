"""A crash at any moment of writing leaves the checkpoint before it usable."""

from __future__ import annotations

import pytest

from marsrl_verl.verl_adapter.checkpoint import (
    SEAL_NAME,
    TRACKER_NAME,
    CheckpointError,
    check_seal,
    newest_sealed,
    point_tracker_at_newest,
    save_state,
    seal,
)


def written(root, step, *, sealed=True):
    """A checkpoint as the trainer leaves it: ours, verl's, then the seal."""
    folder = root / f"global_step_{step}"
    save_state(folder, {"step": step})
    (folder / "actor").mkdir()
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_bytes(b"weights" * step)
    (folder / "data.pt").write_bytes(b"position")
    if sealed:
        seal(folder)
    return folder


def test_the_newest_complete_one_is_resumed_from(tmp_path):
    written(tmp_path, 1)
    written(tmp_path, 2)
    assert point_tracker_at_newest(tmp_path) == 2
    assert (tmp_path / TRACKER_NAME).read_text() == "2"


@pytest.mark.parametrize("tracker", ["3", "", "garbage"])
def test_an_interrupted_one_is_passed_over_whatever_the_tracker_says(tmp_path, tracker):
    written(tmp_path, 2)
    written(tmp_path, 3, sealed=False)
    (tmp_path / TRACKER_NAME).write_text(tracker)
    assert point_tracker_at_newest(tmp_path) == 2
    assert (tmp_path / TRACKER_NAME).read_text() == "2"


def test_a_tracker_without_a_checkpoint_goes(tmp_path):
    written(tmp_path, 1, sealed=False)
    (tmp_path / TRACKER_NAME).write_text("1")
    assert point_tracker_at_newest(tmp_path) is None
    assert not (tmp_path / TRACKER_NAME).exists()


@pytest.mark.parametrize("name", ["marsrl.pt", "data.pt", "actor/model_world_size_1_rank_0.pt"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_named(tmp_path, name, damage):
    path = written(tmp_path, 4) / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + b"!")
    with pytest.raises(CheckpointError, match=path.name):
        point_tracker_at_newest(tmp_path)


def test_a_large_file_is_compared_by_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("marsrl_verl.verl_adapter.checkpoint._HASHED_BYTES", 4)
    folder = written(tmp_path, 4)
    (folder / "data.pt").write_bytes(b"POSITION")
    check_seal(folder)
    (folder / "data.pt").write_bytes(b"POSITIO")
    with pytest.raises(CheckpointError, match=r"data\.pt is damaged"):
        check_seal(folder)


def test_a_folder_without_a_seal_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="interrupted"):
        check_seal(written(tmp_path, 1, sealed=False))


def test_a_damaged_seal_is_refused(tmp_path):
    folder = written(tmp_path, 1)
    (folder / SEAL_NAME).write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        check_seal(folder)


def test_other_folders_are_no_checkpoints(tmp_path):
    for name in ("global_step_x", "global_step_7_old"):
        (tmp_path / name).mkdir()
        seal(tmp_path / name)
    assert newest_sealed(tmp_path) is None
