"""The file of a frozen Solver's answers: every problem that is asked must have some."""

from __future__ import annotations

from pathlib import Path

import pytest
from messages import assert_checks_refuse, assert_message
from small_files import numbered, write_answers

from marsrl_verl.settings.issues import ConfigError

JSONL = "marsrl.policies.solver.jsonl"
FILED = {
    "marsrl.algo.train_roles": ["verifier", "corrector"],
    "marsrl.policies.solver.kind": "jsonl",
    "marsrl.roles.solver.policy": "solver",
}


def test_a_file_with_answers_to_every_problem(checked, tmp_path):
    path = write_answers(tmp_path / "a.jsonl", {"question": "1 + 1", "answers": ["2", "3"]})
    found = checked({**FILED, f"{JSONL}.path": path}).frozen_answers["solver"]
    assert found.count("1 + 1") == 2


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (None, "It can't be read (No such file or directory)"),
        ("", "no line with answers"),
        ('{"question": "1 + 1", "answers": ["2"]}\nnonsense\n', "Line 2 is not JSON"),
        ('{"id": 3, "answers": ["2"]}\n', "Line 1 has no 'question'"),
    ],
)
def test_a_file_that_can_not_be_used(checked, tmp_path, content, hint):
    path = tmp_path / "a.jsonl"
    if content is not None:
        path.write_text(content)
    assert_checks_refuse(checked, {**FILED, f"{JSONL}.path": str(path)}, f"{JSONL}.path", hint)


@pytest.fixture
def split(tmp_path) -> dict[str, object]:
    """Four training problems and three held-out ones."""
    return {
        "data.train_files": numbered(tmp_path / "train.jsonl", [f"t{i}" for i in range(4)]),
        "data.val_files": numbered(tmp_path / "val.jsonl", [f"v{i}" for i in range(3)], first_id=100),
        "data.train_batch_size": 4,
    }


def answers_to(path: Path, *names: object, key: str = "question") -> dict[str, object]:
    rows = [{key: name, "answers": ["2"]} for name in names]
    return {**FILED, f"{JSONL}.path": write_answers(path, *rows)}


def test_problems_without_answers_are_numbered(checked, split, tmp_path):
    with pytest.raises(ConfigError) as refused:
        checked({**split, **answers_to(tmp_path / "a.jsonl", "t0", "t2", "v0", "v1")})
    text = " ".join(str(refused.value).split())
    assert_message(str(refused.value), f"{JSONL}.path", "no answers to 2 of 4 problems of data.train_files")
    assert "(row 1, 3, counted from 0)" in text
    assert "1 of 3 problems of data.val_files (row 2, counted from 0)" in text


def test_a_file_about_other_problems_shows_both_wordings(checked, split, tmp_path):
    refused = assert_checks_refuse(
        checked,
        {**split, **answers_to(tmp_path / "a.jsonl", "t0 Put it in a box.", "v0", "v1", "v2")},
        f"{JSONL}.path",
        "4 of 4 problems of data.train_files",
    )
    assert "The first is 't0', the file's first is 't0 Put it in a box.'" in " ".join(refused.split())


@pytest.mark.parametrize(
    "changes",
    [
        {"marsrl.evaluation.problems": 2},
        {"marsrl.evaluation.before": False, "marsrl.evaluation.after": False},
        {"data.val_max_samples": 2, "data.shuffle": False},
        {"data.val_max_samples": 2, "data.shuffle": True},
    ],
)
def test_only_problems_that_are_asked_need_answers(checked, split, tmp_path, changes):
    filed = answers_to(tmp_path / "a.jsonl", "t0", "t1", "t2", "t3", "v0", "v1")
    with pytest.raises(ConfigError):
        checked({**split, **filed})
    notes = checked({**split, **filed, **changes}).notes
    assert any("random part" in note for note in notes) == bool(changes.get("data.shuffle"))


def test_lines_can_be_named_by_a_column_of_the_data(checked, split, tmp_path):
    filed = answers_to(tmp_path / "a.jsonl", 0, 1, 2, 3, 100, "101", 102, key="id")
    found = checked({**split, **filed, f"{JSONL}.id_column": "extra_info.index"}).frozen_answers["solver"]
    assert [found.names(question) for question in ("t0", "v2")] == [("0",), ("102",)]


def test_problems_without_answers_by_id(checked, split, tmp_path):
    filed = answers_to(tmp_path / "a.jsonl", 0, 1, 2, 3, "v100", key="id")
    refused = assert_checks_refuse(
        checked,
        {**split, **filed, f"{JSONL}.id_column": "extra_info.index"},
        f"{JSONL}.path",
        "3 of 3 problems of data.val_files",
    )
    assert "The first is '100', the file's first is '0'" in " ".join(refused.split())


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("uid", "column uid is missing"),
        ("extra_info.number", "row 0 (from 0) has no id"),
        ("extra_info", "row 0 (from 0) has no id"),
    ],
)
def test_a_column_without_ids(checked, split, tmp_path, column, hint):
    filed = answers_to(tmp_path / "a.jsonl", 0, key="id")
    assert_checks_refuse(checked, {**split, **filed, f"{JSONL}.id_column": column}, f"{JSONL}.path", hint)


def test_an_id_for_two_problems(checked, split, tmp_path):
    split["data.val_files"] = numbered(tmp_path / "val.jsonl", ["v0", "v1", "v2"])
    filed = answers_to(tmp_path / "a.jsonl", 0, 1, 2, 3, key="id")
    assert_checks_refuse(
        checked,
        {**split, **filed, f"{JSONL}.id_column": "extra_info.index"},
        f"{JSONL}.path",
        "names two problems: row 0 of",
    )


def test_ids_need_data_that_can_be_read(checked, split, tmp_path):
    split["data.val_files"] = "hdfs://host/val.parquet"
    filed = answers_to(tmp_path / "a.jsonl", 0, 1, 2, 3, key="id")
    assert_checks_refuse(
        checked,
        {**split, **filed, f"{JSONL}.id_column": "extra_info.index"},
        f"{JSONL}.id_column",
        "another file system",
    )
