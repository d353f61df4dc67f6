"""A crash at any moment of writing leaves the checkpoint before it usable."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from marsrl_verl.reporting import manifest as manifests
from marsrl_verl.reporting.manifest import MANIFEST_NAME, CheckpointError, check_before_start, newest_complete
from marsrl_verl.verl_adapter.checkpoint.files import (
    TRACKER_NAME,
    check_manifest,
    describe_shards,
    keep_newest,
    point_tracker_at_newest,
    remove_manifest,
    save_state,
    set_aside_after,
    write_manifest,
)

WEIGHTS = "actor/model_world_size_1_rank_0.pt"


def written(root, step, *, complete=True):
    """A checkpoint as the trainer leaves it: ours, verl's, then the manifest."""
    folder = root / f"global_step_{step}"
    save_state(folder, {"step": step})
    (folder / "actor").mkdir()
    (folder / WEIGHTS).write_bytes(b"weights" * step)
    (folder / "data.pt").write_bytes(b"position")
    if complete:
        write_manifest(folder)
    return folder


@pytest.mark.parametrize("tracker", [None, "3", "", "garbage"])
def test_the_newest_complete_one_is_resumed_from_whatever_the_tracker_says(tmp_path, tracker):
    for step, complete in ((1, True), (2, True), (3, False)):
        written(tmp_path, step, complete=complete)
    if tracker is not None:
        (tmp_path / TRACKER_NAME).write_text(tracker)
    assert point_tracker_at_newest(tmp_path) == 2
    assert (tmp_path / TRACKER_NAME).read_text() == "2"


def test_a_tracker_without_a_checkpoint_goes(tmp_path):
    written(tmp_path, 1, complete=False)
    (tmp_path / TRACKER_NAME).write_text("1")
    assert point_tracker_at_newest(tmp_path) is None
    assert not (tmp_path / TRACKER_NAME).exists()


def before_resume(folder):
    point_tracker_at_newest(folder.parent)


def before_start(folder):
    check_before_start(folder, one_node=True)


every_check = pytest.mark.parametrize("check", [check_manifest, before_resume, before_start])


@every_check
@pytest.mark.parametrize("name", ["marsrl.pt", "data.pt", WEIGHTS])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_named(tmp_path, check, name, damage):
    folder = written(tmp_path, 4)
    check(folder)
    path = folder / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + b"!")
    with pytest.raises(CheckpointError, match=f"{path.name} is damaged"):
        check(folder)


def test_a_large_file_is_checked_whole(tmp_path):
    folder = written(tmp_path, 4)
    weights = folder / WEIGHTS
    with weights.open("wb") as file:
        file.truncate(40 * 2**20)
    write_manifest(folder)
    check_manifest(folder)
    with weights.open("r+b") as file:
        file.seek(39 * 2**20)
        file.write(b"!")
    with pytest.raises(CheckpointError, match=rf"{weights.name} is damaged"):
        check_manifest(folder)


def test_each_rank_reads_its_own_files_and_the_trainer_the_others(tmp_path, monkeypatch):
    folder = written(tmp_path, 4)
    for rank in range(16):
        (folder / "actor" / f"optim_world_size_16_rank_{rank}.pt").write_bytes(b"moments")
    assert list(describe_shards(folder, 1)) == ["actor/optim_world_size_16_rank_1.pt"]
    read = []
    describe = manifests.describe
    monkeypatch.setattr(manifests, "describe", lambda path: (read.append(path.name), describe(path))[1])

    def shards(folder):
        return {name: facts for rank in range(16) for name, facts in describe_shards(folder, rank).items()}

    for act in (write_manifest, check_manifest):
        read.clear()
        act(folder, shards)
        files = [path.name for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST_NAME]
        assert sorted(read) == sorted(files), "every file is read once"


def test_files_that_only_their_rank_sees_are_listed_too(tmp_path):
    here, there = written(tmp_path / "here", 4), written(tmp_path / "there", 4)
    (here / "actor" / "model_world_size_1_rank_0.pt").rename(here / "actor" / "model_world_size_2_rank_0.pt")
    (there / "actor" / "model_world_size_2_rank_1.pt").write_bytes(b"of the other node")

    def shards(_folder):
        return describe_shards(here, 0) | describe_shards(there, 1)

    write_manifest(here, shards)
    check_manifest(here, shards)
    (there / "actor" / "model_world_size_2_rank_1.pt").write_bytes(b"OF THE OTHER NODE")
    with pytest.raises(CheckpointError, match=r"rank_1\.pt is damaged"):
        check_manifest(here, shards)
    (there / "actor" / "model_world_size_2_rank_1.pt").unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        check_manifest(here, shards)


DAMAGED = ("{", "{}", "[]", '{"files":["a"]}', '{"files":{"a":{"crc":1}}}', '{"files":{"a":{"bytes":1}}}')


@pytest.mark.parametrize(
    ("content", "says"), [(None, "interrupted"), *((content, "damaged") for content in DAMAGED)]
)
def test_a_missing_or_damaged_manifest_is_refused(tmp_path, content, says):
    folder = written(tmp_path, 1, complete=False)
    if content is not None:
        (folder / MANIFEST_NAME).write_text(content)
    with pytest.raises(CheckpointError, match=says):
        check_manifest(folder)


@every_check
@pytest.mark.parametrize(
    ("left", "lacks"),
    [
        ([], "lists 0 files and lacks marsrl.pt, data.pt, model_world_size"),
        (["marsrl.pt", "data.pt"], "lacks model_world_size"),
        ([WEIGHTS, "data.pt"], "lacks marsrl.pt"),
        ([WEIGHTS, "marsrl.pt"], "lacks data.pt"),
    ],
)
def test_a_manifest_that_does_not_name_all_that_is_read_is_refused(tmp_path, check, left, lacks):
    folder = written(tmp_path, 4)
    recorded = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    (folder / MANIFEST_NAME).write_text(json.dumps({"files": {name: recorded[name] for name in left}}))
    with pytest.raises(CheckpointError, match=lacks):
        check(folder)


@pytest.mark.parametrize("name", ["actor/model_world_size_2_rank_1.pt", "actor/optim_world_size_2_rank_0.pt"])
def test_a_rank_without_its_file_is_incomplete(tmp_path, name):
    folder = written(tmp_path, 4, complete=False)
    (folder / name).write_bytes(b"of one rank of two")
    with pytest.raises(CheckpointError, match=r"lacks actor/[a-z]+_world_size_2_rank_"):
        write_manifest(folder)
    assert not (folder / MANIFEST_NAME).exists()


def test_a_file_that_would_be_loaded_unlisted_is_refused(tmp_path):
    folder = written(tmp_path, 4)
    (folder / "actor" / "optim_world_size_1_rank_0.pt").write_bytes(b"of somebody else")
    (folder / "actor" / "notes.txt").write_text("a person's own")
    with pytest.raises(CheckpointError, match=r"lacks actor/optim_world_size_1_rank_0\.pt"):
        check_manifest(folder)


@pytest.mark.parametrize("name", ["/etc/passwd", "../global_step_1/data.pt"])
def test_a_manifest_names_nothing_outside(tmp_path, name):
    folder = written(tmp_path, 4)
    recorded = json.loads((folder / MANIFEST_NAME).read_text())
    recorded["files"][name] = {"bytes": 1, "sha256": ""}
    (folder / MANIFEST_NAME).write_text(json.dumps(recorded))
    with pytest.raises(CheckpointError, match="below the folder"):
        check_manifest(folder)


def test_large_files_are_measured_before_the_start_and_other_nodes_files_are_theirs(tmp_path, monkeypatch):
    folder = written(tmp_path, 4)
    monkeypatch.setattr(manifests, "_SMALL_BYTES", 0)
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[::-1])
    before_start(folder)
    weights.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"expected {'bytes': 28, .*found {'bytes': 0"):
        check_before_start(folder, one_node=False)
    weights.unlink()
    check_before_start(folder, one_node=False)
    (folder / "data.pt").unlink()
    with pytest.raises(CheckpointError, match=r"data\.pt is damaged"):
        check_before_start(folder, one_node=False)


def test_other_folders_are_no_checkpoints(tmp_path):
    for name in ("global_step_x", "global_step_7_old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST_NAME).write_text("{}")
    assert newest_complete(tmp_path) is None


def names(root) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_only_complete_ones_count_and_interrupted_older_ones_go(tmp_path):
    for step, complete in ((1, True), (2, False), (3, True), (10, True), (11, False)):
        written(tmp_path, step, complete=complete)
    (tmp_path / "global_step_1_copy").mkdir()
    keep_newest(tmp_path, 2)
    assert names(tmp_path) == {"global_step_3", "global_step_10", "global_step_11", "global_step_1_copy"}
    written(tmp_path / "b", 1, complete=False)
    keep_newest(tmp_path / "b", 1)
    assert names(tmp_path / "b") == {"global_step_1"}, "none is complete, so nothing goes"


def test_an_interrupted_deletion_leaves_no_manifest_and_is_finished_later(tmp_path, monkeypatch, caplog):
    for step in (1, 2):
        written(tmp_path, step)

    def killed(path, **_kwargs):
        (path / "data.pt").unlink()
        raise OSError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        keep_newest(tmp_path, 1)
    assert (tmp_path / "global_step_1").exists() and not (tmp_path / "global_step_1" / MANIFEST_NAME).exists()
    assert "global_step_1 can't be deleted as a whole (busy)" in caplog.text
    keep_newest(tmp_path, 1)
    assert names(tmp_path) == {"global_step_2"}


def test_later_ones_are_set_aside(tmp_path, caplog):
    for step in (10, 20, 30, 40):
        written(tmp_path, step)
    written(tmp_path, 50, complete=False)
    (tmp_path / TRACKER_NAME).write_text("40")
    assert set_aside_after(tmp_path, 20) == [
        tmp_path / "replaced" / "global_step_40.1",
        tmp_path / "replaced" / "global_step_30.1",
    ]
    assert newest_complete(tmp_path) == 20 and (tmp_path / TRACKER_NAME).read_text() == "20"
    assert f"{tmp_path}/global_step_40 is now {tmp_path}/replaced/global_step_40.1" in caplog.text
    check_manifest(tmp_path / "replaced" / "global_step_40.1")
    written(tmp_path, 40)
    set_aside_after(tmp_path, 0)
    assert names(tmp_path) == {"replaced", "global_step_50"}
    assert (tmp_path / "replaced" / "global_step_40.2").exists()
    assert set_aside_after(tmp_path, 0) == []
    assert set_aside_after(tmp_path / "nowhere", 3) == []


def test_a_kill_while_later_ones_are_set_aside_leaves_no_gap(tmp_path, monkeypatch):
    for step in (10, 20, 30):
        written(tmp_path, step)
    replace, moved = os.replace, []

    def killed(*args):
        if moved:
            raise KeyboardInterrupt
        moved.append(args)
        replace(*args)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        set_aside_after(tmp_path, 10)
    assert newest_complete(tmp_path) == 20


def test_a_manifest_under_its_former_name_is_read_and_replaced(tmp_path):
    folder = written(tmp_path, 1)
    (folder / MANIFEST_NAME).rename(folder / manifests.OLD_NAME)
    assert newest_complete(tmp_path) == 1
    check_before_start(folder, one_node=True)
    remove_manifest(folder)
    assert newest_complete(tmp_path) is None
    write_manifest(folder)
    assert (folder / MANIFEST_NAME).is_file() and not (folder / manifests.OLD_NAME).exists()
