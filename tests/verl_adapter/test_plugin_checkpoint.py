from __future__ import annotations

import pytest
import torch

from marsrl_verl.verl_adapter.checkpoint import FILE_NAME, CheckpointError, load_state, save_state


def test_state_comes_back(tmp_path):
    save_state(tmp_path / "global_step_3", {"step": 3, "scheduler": {"a": [1, 2]}})
    assert load_state(tmp_path / "global_step_3")["scheduler"] == {"a": [1, 2]}


def test_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=FILE_NAME):
        load_state(tmp_path)


def test_truncated_file_is_refused_by_name(tmp_path):
    save_state(tmp_path, {"step": 1})
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="damaged"):
        load_state(tmp_path)


def test_other_version_is_refused(tmp_path):
    torch.save({"version": 99}, tmp_path / FILE_NAME)
    with pytest.raises(CheckpointError, match="version 99"):
        load_state(tmp_path)


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    save_state(tmp_path, {"step": 1})

    def killed(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, {"step": 2})
    assert load_state(tmp_path)["step"] == 1


def test_the_content_is_on_disk_before_the_file_takes_its_name(tmp_path, monkeypatch):
    import os

    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _f=original, _n=name: (calls.append(_n), _f(*a))[1])
    save_state(tmp_path, {"step": 1})
    assert calls[:2] == ["fsync", "replace"]
    assert load_state(tmp_path)["step"] == 1


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"\x80\x02broken"])
def test_a_file_of_something_else_is_refused_by_name(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{FILE_NAME} cannot be read"):
        load_state(tmp_path)


def test_nothing_but_the_file_is_left_in_the_folder(tmp_path):
    for step in (1, 2):
        save_state(tmp_path, {"step": step})
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
