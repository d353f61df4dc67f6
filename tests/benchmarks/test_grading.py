"""The benchmark of the graders, at a size of seconds."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("verl", reason="a reward manager of verl's")

from benchmarks.grading import BOMBS, main, ordinary, summary, with_bombs
from benchmarks.grading import Row as GradingRow


def test_bombs_are_spread_among_the_answers():
    mixed = with_bombs(ordinary(8), 2)
    assert [answer.text in BOMBS for answer in mixed].count(True) == 2
    assert mixed[0].text in BOMBS and mixed[-1].text not in BOMBS
    assert [answer for answer in mixed if answer.text not in BOMBS] == ordinary(8)


def test_the_table_says_what_bombs_cost():
    rows = [
        GradingRow("exact", "ordinary", 40, 0, 1.0, 1.0, 2.0),
        GradingRow("exact", "ordinary", 40, 0, 3.0, 3.0, 2.0),
        GradingRow("exact", "ordinary", 40, 4, 4.5, 2.5, 6.0),
    ]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in summary(rows).splitlines()]
    assert lines[2] == ["exact", "40 ordinary", "0", "2.0", "2.0", "2.0", "20", "20"]
    assert lines[3] == ["exact", "40 ordinary", "4", "4.5 (+2.5)", "2.5 (+0.5)", "6.0 (+4.0)", "", ""]


def test_a_rate_of_less_than_a_tick_of_processor_time_is_not_given():
    (line,) = summary([GradingRow("exact", "numbers", 20, 0, 0.5, 0.5, 0.0)]).splitlines()[2:]
    assert [cell.strip() for cell in line.strip("|").split("|")][-2:] == ["40", "not measurable"]


def test_answers_are_graded_through_the_reward_manager(tmp_path, capsys):
    small = ["--rewards", "hybrid", "--answers", "20", "--ordinary", "4", "--bombs", "1", "--repeat", "1"]
    assert main([*small, "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["what"], row["answers"], row["bombs"]) for row in rows] == [
        ("numbers", 20, 0),
        ("symbolic", 2, 0),
        ("ordinary", 4, 0),
        ("ordinary", 4, 1),
    ]
    assert "math-verify" in capsys.readouterr().out
