"""Files of a run: whole or as they were, in JSON that every reader takes."""

import json

import numpy as np
import pytest

from marsrl_verl.reporting.files import to_json, write_atomic, write_lines_atomic


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "x.json"
    write_atomic(path, "old")

    def breaking_off():
        yield "new"
        raise MemoryError

    with pytest.raises(MemoryError):
        write_lines_atomic(path, breaking_off())
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]


def test_half_of_a_surrogate_pair_is_kept_in_json_and_stops_nothing(tmp_path):
    path = tmp_path / "x.json"
    write_atomic(path, to_json({"a": "ü\ud800"}))
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "ü\ud800"}


def test_arrays_are_lists_in_json():
    value = {"a": np.arange(3, dtype=np.int32), "b": [np.float32(0.5)]}
    assert to_json(value) == '{"a": [0, 1, 2], "b": [0.5]}'
    assert (
        to_json({**value, "c": np.array([1.0, np.nan])}) == '{"a": [0, 1, 2], "b": [0.5], "c": [1.0, null]}'
    )
    with pytest.raises(TypeError, match="set has no form in JSON"):
        to_json({"a": {1}})


def test_json_has_no_nan():
    assert to_json({"a": [float("inf"), np.int64(3)], "b": (True, None, "ü")}) == (
        '{"a": [null, 3], "b": [true, null, "ü"]}'
    )
