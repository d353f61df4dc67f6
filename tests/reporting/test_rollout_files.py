"""Files of rollouts, their indexes, and what is left out."""

from __future__ import annotations

import gzip
import json
import subprocess

import pytest

from marsrl_verl.reporting import rollout_files
from marsrl_verl.reporting.rollout_files import (
    found,
    read_line,
    read_lines,
    remove_oldest,
    write_rollouts,
)
from marsrl_verl.reporting.rollout_files import (
    rollout_files as files_of,
)
from marsrl_verl.reporting.rollout_index import IndexBuilder, index_path, read_index
from marsrl_verl.settings.run_logs import RolloutLogConfig


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rollouts").mkdir()
    return tmp_path / "rollouts"


def line(number: int, problem: str = "p0", text: str = "so 5 it is", **more):
    group = f"{problem}/solver/0"
    return {
        "schema_version": 2,
        "step": 3,
        "role": "solver",
        "stage": "solver",
        "group": group,
        "trajectory": f"{group}#{number}",
        "sequence": 0,
        "policy": "shared",
        "parent": None,
        "fork": {"trajectory": f"{group}#0", "token": 2, "sequence": 0} if number else None,
        "problem": {"id": problem, "question": "2+3?", "ground_truth": "5", "data_source": "sums"},
        "prompt": "[user]\n2+3?",
        "response": text,
        "final": text,
        "prompt_tokens": 4,
        "tokens": 3,
        "token_ids": [1, 2, 3],
        "masked": [],
        "external": False,
        "reward": 0.5,
        "graded": True,
        "finish_reason": "stop",
        "policy_version": 2,
        "versions": [[3, 2]],
        "error": None,
        "prefix_tokens": 0,
        "events": [{"turn": 1}],
        "answer": "5",
        **more,
    }


LINES = [line(k, f"p{k % 7}", f"é{k}\n" * (k % 5) * 40 + "\ud800") for k in range(60)]
TRAINED = {"p1/solver/0#1": [[(2, 0.25), (3, -1.5)]]}


@pytest.mark.parametrize("compress", [0, 16])
@pytest.mark.parametrize("member", [1, 4000, 2**20])
def test_each_line_is_read_by_its_place(folder, monkeypatch, compress, member):
    monkeypatch.setattr(rollout_files, "_MEMBER", member)
    write_rollouts(folder, "step_3", LINES, RolloutLogConfig(compress_above_mb=compress), TRAINED)
    path = found(folder, "step_3")
    assert path.name == ("step_3.jsonl" if compress else "step_3.jsonl.gz")
    index = read_index(path)
    rows = index.to_pylist()
    assert [read_line(path, row) for row in rows] == LINES == list(read_lines(path))
    (row,) = [one for one in rows if one["trajectory"] == "p1/solver/0#1"]
    assert (row["advantage"], row["fork"], row["events"], row["answer"]) == (-1.5, "p1/solver/0#0", 1, "5")
    assert [one["advantage"] for one in rows].count(None) == 59

    index_path(path).unlink()
    remade = read_index(path, TRAINED)
    assert remade.drop_columns(["member", "begin"]) == index.drop_columns(["member", "begin"])
    assert [read_line(path, row) for row in remade.to_pylist()] == LINES


def test_an_index_of_another_file_is_not_believed(folder):
    write_rollouts(folder, "step_3", LINES[:2], RolloutLogConfig())
    path = folder / "step_3.jsonl"
    path.write_text(json.dumps(line(0)) + "\n")
    assert len(read_index(path)) == 1


def test_common_programs_read_what_is_compressed(folder):
    write_rollouts(folder, "step_3", LINES, RolloutLogConfig(compress_above_mb=0))
    said = subprocess.run(["gzip", "-dc", folder / "step_3.jsonl.gz"], capture_output=True, check=True)
    assert [json.loads(one) for one in said.stdout.splitlines()] == LINES


def test_a_file_is_plain_or_compressed(folder):
    for compress in (0, 16, 0):
        write_rollouts(folder, "step_3", LINES, RolloutLogConfig(compress_above_mb=compress))
        (path,) = files_of(folder)
        assert len(read_index(path)) == len(LINES)


def test_of_a_large_step_whole_problems_are_kept(folder):
    lines = [line(k, f"p{k % 40}", "x" * 15_000) for k in range(160)]  # 5 MB
    write_rollouts(folder, "step_3", lines, RolloutLogConfig(max_mb=2))
    kept = list(read_lines(folder / "step_3.jsonl"))
    problems = {one["problem"]["id"] for one in kept}
    assert kept == [one for one in lines if one["problem"]["id"] in problems]
    size = (folder / "step_3.jsonl").stat().st_size
    assert 0.8 * 2**21 < size < 1.1 * 2**21 and 10 < len(problems) < 20
    write_rollouts(folder, "step_3", lines[::-1], RolloutLogConfig(max_mb=2))
    again = {one["problem"]["id"] for one in read_lines(folder / "step_3.jsonl")}
    assert again == problems, "a checksum chooses, not the order"
    write_rollouts(folder, "step_4", [line(0, text="x" * 2**21)], RolloutLogConfig(max_mb=1))
    assert len(list(read_lines(folder / "step_4.jsonl"))) == 1, "one problem stays"


def test_the_oldest_steps_go(folder):
    for step in (2, 10, 9):
        write_rollouts(folder, f"step_{step}", [line(0, text="x" * 2**20)], RolloutLogConfig())
    write_rollouts(folder, "eval_before", [line(0)], RolloutLogConfig())
    size = (folder / "step_2.jsonl").stat().st_size
    remove_oldest(folder, 2.5 * size / 2**30)
    names = [path.name for path in files_of(folder)]
    assert names == ["step_9.jsonl", "step_10.jsonl", "eval_before.jsonl"]
    assert not index_path(folder / "step_2.jsonl").exists()
    remove_oldest(folder, 1e-9)
    assert [path.name for path in files_of(folder)] == ["step_10.jsonl", "eval_before.jsonl"]


def test_a_line_of_something_else_is_refused(folder):
    import msgspec

    with pytest.raises(msgspec.ValidationError, match="step"):
        IndexBuilder().add(b'{"a": 1}', 0, 0)


def test_one_member_by_others_is_read(folder):
    with gzip.open(folder / "step_3.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(one) + "\n" for one in LINES)
    path = folder / "step_3.jsonl.gz"
    assert [read_line(path, row) for row in read_index(path).to_pylist()] == LINES


@pytest.mark.parametrize(
    ("reference", "response", "says"),
    [
        *(("12", "It is 12. So", True), ("12", "0.12", False), ("12", "12.5", False), ("12", "a312", False)),
        *((r"\frac{1}{2}", r"so \frac{1}{2}", True), ('["x+1", "1+x"]', "it is 1+x", True)),
        *(("2", "1. Add.\n2. Check.", False), ("2", "**Step 2**: add", False), ("2", "2. It is 2.", True)),
        *(("A", "A plan", None), ("7", "7", None), ("", "7", None)),
    ],
)
def test_a_response_has_the_reference(reference, response, says):
    """As a word or number of its own; null where the question has it, or a letter alone is asked for."""
    line = {
        **dict.fromkeys(("role", "stage", "group", "trajectory"), "x"), "step": 1, "response": response,
        "problem": {"id": "p", "question": "7+5?", "ground_truth": reference},
    }  # fmt: skip
    rows = IndexBuilder()
    rows.add(json.dumps(line).encode(), 0, 0)
    assert rows.table()["says_reference"].to_pylist() == [says]
