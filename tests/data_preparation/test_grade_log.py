"""The file that makes a preparation resumable."""

from __future__ import annotations

import pytest

from marsrl_verl.data.rows import DataError
from marsrl_verl.data_preparation.grades import Grade, GradeLog, ProblemGrades

SETTINGS = {"temperature": 0.85, "answers": 2, "prompts": {"instruction": "é"}}


def grades(key: str, *rewards: float) -> ProblemGrades:
    return ProblemGrades(key, tuple(Grade(reward) for reward in rewards), "1+1", "2")


def test_what_was_appended_is_there_again(tmp_path):
    path = tmp_path / "folder" / "grades.jsonl"
    cut = Grade(0.0, "3", "length", 99, "cut \ud800", False)
    rich = ProblemGrades("b", (cut, Grade(1.0, "2", tokens=5)), "q", "2", ("a text", "another"))
    with GradeLog(path, SETTINGS) as log:
        assert log.grades == {}
        log.append(grades("a", 1, 0))
        log.append(rich)
    with GradeLog(path, dict(reversed(SETTINGS.items()))) as log:
        assert log.grades == {"a": grades("a", 1, 0), "b": rich}
        assert not log.dropped_tail


@pytest.fixture
def path(tmp_path):
    return tmp_path / "grades.jsonl"


def test_an_unfinished_last_line_is_taken_off_and_written_anew(path):
    with GradeLog(path, SETTINGS) as log:
        log.append(grades("a", 1))
        log.append(grades("b", 1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with GradeLog(path, SETTINGS) as log:
        assert log.dropped_tail
        assert list(log.grades) == ["a"]
        log.append(grades("b", 1))
    assert path.read_bytes() == whole


def test_a_log_that_was_killed_while_it_began_begins_again(path):
    path.write_text('{"format": 1, "sett')
    with GradeLog(path, SETTINGS) as log:
        log.append(grades("a", 1))
    with GradeLog(path, SETTINGS) as log:
        assert list(log.grades) == ["a"]


def test_other_settings_are_refused_by_name(path):
    with GradeLog(path, SETTINGS) as log:
        log.append(grades("a", 1))
    before = path.read_bytes()
    with pytest.raises(DataError) as caught:
        GradeLog(path, {"answers": 3, "temperature": 0.5, "prompts": {}, "seed": 1})
    assert "answers was 2 and is 3; prompts was {'instruction': 'é'} and is {}" in caught.value.what
    assert "seed was None and is 1; temperature was 0.85 and is 0.5" in caught.value.what
    assert path.read_bytes() == before
    with GradeLog(path, SETTINGS) as log:
        assert list(log.grades) == ["a"], "it is free again"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("{", "line 3: it is no JSON object"),
        ("[]", "line 3: it is no JSON object"),
        ('{"problem": "x"}', "line 3: it holds no grades"),
        ('{"problem": "x", "grades": []}', "line 3: it holds no grades"),
        ('{"problem": "x", "grades": [{"unknown": 1}]}', "line 3: it holds no grades"),
    ],
)
def test_a_damaged_line_is_named(path, line, hint):
    with GradeLog(path, SETTINGS) as log:
        log.append(grades("a", 1))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=hint):
        GradeLog(path, SETTINGS)


def test_another_file_is_no_log(path):
    path.write_text('{"question": "1+1"}\n')
    with pytest.raises(DataError, match="no settings of format"):
        GradeLog(path, SETTINGS)


def test_two_processes_do_not_write_one_log(path):
    with GradeLog(path, SETTINGS), pytest.raises(DataError, match="another process"):
        GradeLog(path, SETTINGS)
    with GradeLog(path, SETTINGS) as log:
        assert log.grades == {}
