"""Problems that stand in evaluation sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.contamination import EvaluationSet, find_contamination
from marsrl_verl.data.problems import collect
from marsrl_verl.data.rows import DataError, Row


def problems(*questions: str):
    rows = [Row(f"train row {k}", {"question": q, "answer": "1"}) for k, q in enumerate(questions)]
    return list(collect(rows, Columns("question", "answer"), None).problems.values())


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_typesetting_hides_nothing(tmp_path):
    path = write(
        tmp_path / "test.jsonl",
        {"question": "Who wrote  Emma?", "answer": ["Jane Austen"]},
        {"question": "What is $2 + 2$?", "answer": ["4"]},
    )
    ours = problems("who wrote emma", "What is 2+2", "What is 2-2?", "Who wrote Persuasion?")
    found = find_contamination(ours, [EvaluationSet.read(path)])
    assert found.shared == {str(path): 2}
    assert found.keys == {ours[0].key, ours[1].key}
    assert found.places[0] == ("train row 0", f"{path} row 0 (line 1)")


def test_a_benchmark_is_read_from_the_hub(monkeypatch):
    import datasets

    rows = [{"problem": "What is $2 + 2$?", "answer": 4}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list(rows))
    ours = problems("What is 2+2", "What is 2-2?")
    found = find_contamination(ours, [EvaluationSet.read(Path("aime24"))])
    assert found.shared == {"aime24": 1} and found.keys == {ours[0].key}
    assert found.places == [("train row 0", "HuggingFaceH4/aime_2024 row 0")]


def test_every_form_of_a_file_is_read(tmp_path):
    chat = write(
        tmp_path / "chat.jsonl",
        {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "A?"}]},
    )
    named = write(tmp_path / "named.jsonl", {"query": "B?"})
    problem = write(tmp_path / "problem.jsonl", {"problem": "C?"})
    sets = [EvaluationSet.read(chat), EvaluationSet.read(named, "query"), EvaluationSet.read(problem)]
    found = find_contamination(problems("a", "b", "c", "d"), sets)
    assert list(found.shared.values()) == [1, 1, 1]
    assert len(found.keys) == 3


def test_a_broken_command_in_either_hides_nothing(tmp_path):
    path = write(tmp_path / "test.jsonl", {"question": "Find \x08eta."})
    assert find_contamination(problems("Find \\beta."), [EvaluationSet.read(path)]).keys


@pytest.mark.parametrize("row", [{"text": "A?"}, {"question": "  "}, [1], {"prompt": [{"role": "user"}]}])
def test_a_row_without_a_question_is_named(tmp_path, row):
    path = write(tmp_path / "test.jsonl", {"question": "A?"}, row)
    with pytest.raises(DataError, match=r"test\.jsonl row 1 \(line 2\): it has no question") as error:
        EvaluationSet.read(path)
    assert "--evaluation-column" in error.value.fix
