"""The benchmark of the search, with a corpus of a few documents."""

from __future__ import annotations

import json

import pytest

from benchmarks.search_quality import Row as SearchRow
from benchmarks.search_quality import as_words, holds, main, quantile, read_questions, summary

DOCUMENTS = [
    {"id": "1", "title": "The Whale", "text": "A film by Ann Lee."},
    {"id": "2", "title": "Ann Lee", "text": "She came from Riga on 3 May 1902."},
    {"id": "3", "title": "Whales", "text": "Whales live in the sea, film or no film."},
    *[{"id": f"f{n}", "title": f"Village {n}", "text": "It lies by the river."} for n in range(9)],
]
QUESTIONS = [
    {"question": "Where was the maker of the film The Whale born?", "answer": "Riga"},
    {"question": "Who made The Whale?", "answer": ["Lee Ann", "Ann Lee"]},
    {"question": "Who made the Eel?", "answer": "Bo Berg"},
]


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, rows in (("corpus.jsonl", DOCUMENTS), ("questions.jsonl", QUESTIONS)):
        path = tmp_path / name
        path.write_text("\n".join(json.dumps(row) for row in rows))
        paths.append(str(path))
    return paths


def test_answers_are_found_as_words():
    assert holds(as_words("Born on 3 May, 1902."), ["3 may 1902"])
    assert not holds(as_words("It is known."), ["no"])
    assert not holds(as_words("May 3, 1902"), ["3 May 1902"])
    assert not holds(as_words("anything"), ["?!"])


def test_quantiles():
    values = [float(n) for n in range(1, 101)]
    assert [quantile(values, share) for share in (0.01, 0.5, 0.95, 1.0)] == [1.0, 50.0, 95.0, 100.0]
    assert quantile([3.0], 0.95) == 3.0


def test_questions_are_asked_and_counted(files, tmp_path, capsys):
    corpus, questions = files
    asked = f"--corpus {corpus} --questions {questions} --top 2 --named-weights 0 2 --missed".split()
    assert main([*asked, "--json", str(tmp_path / "rows.json")]) == 0
    plain, named = json.loads((tmp_path / "rows.json").read_text())
    assert (plain["found"], named["found"]) == (1, 2)
    assert (named["questions"], named["ceiling"], named["documents"]) == (3, 2, 12)
    assert named["missed"] == ["Who made the Eel?"]
    shown = capsys.readouterr().out
    assert "- Who made the Eel?" in shown
    assert "12 documents" in shown


def test_the_table():
    row = SearchRow(0.5, 69, 59, 65, 351, 0.25, 1.94, 2.04, 8.0, 51.2, ())
    line = summary([row], 5).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["0.5", "59", "69", "65", "1.9", "2.0", "8.0", "51", "0.25"]


def test_a_line_that_is_no_question(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "x", "answer": 5}')
    with pytest.raises(ValueError, match="line 1: expected"):
        read_questions(path)
