from __future__ import annotations

import os
from enum import Enum

import numpy as np
import pytest
import torch

from marsrl_verl.verl_adapter.checkpoint.files import (
    STATE_NAME,
    STATE_VERSION,
    CheckpointError,
    load_state,
    save_state,
)


class Code:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {os.environ['MARSRL_TEST_TRACE']}",)


def test_code_in_a_forged_file_is_not_run(tmp_path, monkeypatch):
    trace = tmp_path / "ran"
    monkeypatch.setenv("MARSRL_TEST_TRACE", str(trace))
    torch.save({"version": STATE_VERSION, "step": 3, "scheduler": Code()}, tmp_path / STATE_NAME)
    with pytest.raises(CheckpointError, match="cannot be read as plain values"):
        load_state(tmp_path)
    assert not trace.exists()
    torch.load(tmp_path / STATE_NAME, weights_only=False)
    assert trace.exists(), "the file would have run it"


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64", "uint8", "bool"])
def test_arrays_come_back_as_they_were(tmp_path, dtype):
    array = np.arange(6).astype(dtype)
    save_state(tmp_path, {"a": {"b": [array[1:4], np.zeros((2, 0), dtype)]}, "c": torch.arange(2)})
    found = load_state(tmp_path)
    part, empty = found["a"]["b"]
    assert (part.dtype, part.tolist()) == (array.dtype, array[1:4].tolist()) and empty.shape == (2, 0)
    assert part.flags.writeable and isinstance(found["c"], torch.Tensor), "a tensor stays one"


def test_an_array_is_written_once_however_often_it_occurs(tmp_path):
    shared = np.arange(10_000, dtype=np.int32)
    save_state(tmp_path / "once", {"a": shared})
    save_state(tmp_path / "often", {"a": [shared, {"b": shared}, shared], "c": shared.copy()})
    first, second, third = load_state(tmp_path / "often")["a"]
    assert first is second["b"] is third and load_state(tmp_path / "often")["c"] is not first
    once, often = ((tmp_path / name / STATE_NAME).stat().st_size for name in ("once", "often"))
    assert often < 2 * once + 2000


def test_a_small_part_of_a_large_array_is_written_alone(tmp_path):
    save_state(tmp_path, {"a": np.zeros(1_000_000, dtype=np.float32)[:10]})
    assert (tmp_path / STATE_NAME).stat().st_size < 10_000


class Colour(str, Enum):
    RED = "red"


def test_what_could_not_be_loaded_is_not_written(tmp_path):
    state = {"a": [np.float32(0.5), np.int64(3)], "b": (1, None), "c": torch.arange(2)}
    save_state(tmp_path, state)
    found = load_state(tmp_path)
    assert found["a"] == [0.5, 3] and found["b"] == (1, None) and found["c"].tolist() == [0, 1]
    for value in (Colour.RED, np.array(["text"]), np.array([None]), {1, 2}, Code):
        with pytest.raises(TypeError, match=r"state\.scheduler\[0\] is a "):
            save_state(tmp_path, {"scheduler": [value]})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "is missing"),
        (lambda whole: whole[:-20], "cannot be read .*damaged"),
        *((content, "cannot be read") for content in (b"", b"no checkpoint", b"\x80\x02broken")),
    ],
)
def test_a_file_that_is_missing_cut_off_or_of_something_else_is_refused_by_name(tmp_path, content, says):
    save_state(tmp_path, {"step": 1})
    path = tmp_path / STATE_NAME
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"{STATE_NAME} {says}"):
        load_state(tmp_path)


@pytest.mark.parametrize("version", [6, 99])  # 6 has no state of a schedule
def test_another_version_is_refused(tmp_path, version):
    torch.save({"version": version}, tmp_path / STATE_NAME)
    with pytest.raises(CheckpointError, match=f"version {version}, this code reads"):
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
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _f=original, _n=name: (calls.append(_n), _f(*a))[1])
    save_state(tmp_path, {"step": 1})
    assert calls[:2] == ["fsync", "replace"]


def test_nothing_but_the_file_is_left_in_the_folder(tmp_path):
    for step in (1, 2):
        save_state(tmp_path, {"step": step})
    assert [path.name for path in tmp_path.iterdir()] == [STATE_NAME]
