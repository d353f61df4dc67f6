"""Reading data files as a check."""

from __future__ import annotations

import json

import pytest

from marsrl_verl.config.data_files import UnreadableFileError, read_report

REQUIRED = ("prompt", "reward_model")


def row(question: str) -> dict:
    return {"prompt": [{"role": "user", "content": question}], "reward_model": {"ground_truth": "2"}}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_half_of_a_surrogate_pair_is_named_before_anything_starts(tmp_path, name):
    path, rows = tmp_path / name, [row("1 + 1 = ? 🙂"), row("1 + 1 = ?\ud800")]
    path.write_text(json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows)))
    with pytest.raises(UnreadableFileError, match=r"row 1 \(from 0\) holds half of a surrogate pair"):
        read_report(path, "train", "prompt", REQUIRED)
    path.write_text(json.dumps(rows[:1]))
    if name.endswith("json"):
        assert read_report(path, "train", "prompt", REQUIRED).longest_question == "1 + 1 = ? 🙂"


def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path):
    path = tmp_path / "rows.jsonl"
    questions = ["one\u2028line", "two\x85", "\x00three"]
    path.write_text("\n".join(json.dumps(row(one), ensure_ascii=False) for one in questions))
    assert read_report(path, "train", "prompt", REQUIRED).rows == 3
