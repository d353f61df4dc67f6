"""Reading data files as a check."""

from __future__ import annotations

import json

import pytest

from marsrl_verl.data.files import read_report


def row(question: str) -> dict:
    chat = [{"role": "user", "content": question}]
    return {"prompt": chat, "reward_model": {"ground_truth": "2"}, "data_source": "test"}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_half_of_a_surrogate_pair_is_named_before_anything_starts(tmp_path, name):
    path, rows = tmp_path / name, [row("1 + 1 = ? 🙂"), row("1 + 1 = ?\ud800")]
    path.write_text(json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows)))
    report = read_report(path, "train")
    ((what, fault),) = report.faults.items()
    assert "half of a surrogate pair" in what
    assert fault.places[0].startswith("1")
    assert report.longest_question == "1 + 1 = ? 🙂"


def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path):
    path = tmp_path / "rows.jsonl"
    questions = ["one\u2028line", "two\x85", "\x00three"]
    path.write_text("\n".join(json.dumps(row(one), ensure_ascii=False) for one in questions))
    assert read_report(path, "train").rows == 3
