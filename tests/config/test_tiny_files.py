"""Files of the tiny task that the default configuration points at."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import accepted

from marsrl_verl.data.files import read_report
from marsrl_verl.demo.assets import model_path
from marsrl_verl.demo.files import tiny_data, tiny_model
from marsrl_verl.machine.cache import cache_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "marsrl-verl"


def test_problems_are_written_once_and_always_the_same(cache):
    first = tiny_data("train", 16)
    content = Path(first).read_bytes()
    assert first.startswith(str(cache))
    assert tiny_data("train", 16) == first
    report = read_report(cache / first, "train")
    assert (report.rows, report.faults) == (16, {})
    (cache / first).unlink()
    assert Path(tiny_data("train", 16)).read_bytes() == content
    assert sorted(path.suffix for path in cache.iterdir()) == [".parquet"]


def test_a_change_in_a_file_that_the_rows_depend_on_makes_new_ones(cache, tmp_path, monkeypatch):
    from studies.toy_tasks.careless_errors import problems, transcripts

    assert str(transcripts.__file__) in problems.SOURCES
    first = tiny_data("held_out", 2, "studies.toy_tasks.careless_errors")
    changed = tmp_path / "transcripts.py"
    changed.write_text(Path(transcripts.__file__).read_text() + "\n# changed")
    monkeypatch.setattr(problems, "SOURCES", (str(changed),))
    assert tiny_data("held_out", 2, "studies.toy_tasks.careless_errors") != first


def test_splits_are_different_files(cache):
    assert tiny_data("train", 8) != tiny_data("held_out", 8)


def test_cache_falls_back_to_the_temporary_folder(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert cache_folder().parent == tmp_path


def test_model_is_the_shipped_one():
    assert tiny_model() == model_path()


def test_no_prompt_of_the_tiny_world_is_too_long(run, cache):
    data = tiny_data("train", 64)
    done = accepted(
        run, f"actor_rollout_ref.model.path={model_path()}", f"data.train_files={data}", "dry_run=true"
    )
    assert "counted by the model's tokenizer" in done.text
    assert "longer ones are skipped" not in done.out
