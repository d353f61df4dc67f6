"""Rows of files become problems; what is wrong with a row is said with its number."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import verl_row, write_lines

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.problems import Collected, Instruction, collect, look_alike, problem_key
from marsrl_verl.data.rows import DataError, RowError, read_rows
from marsrl_verl.data.sources import DAPO_INSTRUCTION

VERL = Columns()
PLAIN = Columns(question="question", answer="answer")


def collected(path: Path, columns: Columns = VERL, instruction: Instruction | None = None) -> Collected:
    return collect(read_rows([path], columns.names), columns, instruction)


@pytest.fixture
def of_rows(tmp_path):
    """What the rows of a file become."""
    return lambda *rows, **more: collected(write_lines(tmp_path / "a.jsonl", rows), **more)


def only_problem(found: Collected):
    assert not found.faults
    (problem,) = found.problems.values()
    return problem


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_verls_rows_are_read_from_every_kind_of_file(tmp_path, suffix):
    rows = [verl_row("1 + 1?", "2", ability="sums", extra_info={"index": 7}), verl_row("2 + 2?", "4")]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        write_lines(path, rows)
    else:
        path.write_text(json.dumps(rows))
    found = collected(path)
    first, second = found.problems.values()
    assert (found.rows, found.faults) == (2, {})
    assert first.problem.messages == ({"role": "user", "content": "1 + 1?"},)
    assert (first.question, first.problem.ground_truth, first.problem.data_source) == ("1 + 1?", "2", "sums")
    assert (first.problem.ability, json.loads(first.extra)) == ("sums", {"index": 7})
    assert (second.problem.ability, second.problem.ground_truth) == ("", "4")


def test_plain_columns_are_named(tmp_path):
    path = write_lines(tmp_path / "gsm.jsonl", [{"question": "How many?", "answer": "3*4\n#### 12"}])
    problem = only_problem(collected(path, Columns("question", "answer", answer_after="####")))
    assert problem.problem.ground_truth == "12"
    assert problem.problem.messages == ({"role": "user", "content": "How many?"},)
    assert problem.problem.data_source == "gsm"


def test_a_dot_leads_into_a_column(of_rows):
    found = of_rows(
        {"prompt": "1+1", "reward_model": {"ground_truth": 2}}, columns=Columns(question="prompt")
    )
    assert only_problem(found).problem.ground_truth == "2"


def test_several_accepted_answers_stay_several(of_rows):
    assert only_problem(of_rows(verl_row("x^2 = 1?", ["1", "-1"]))).problem.ground_truth == '["1", "-1"]'


def test_a_system_message_stays_and_the_last_user_message_is_the_question(of_rows):
    row = verl_row("", "2")
    row["prompt"] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1+1 "}]
    problem = only_problem(of_rows(row))
    assert problem.question == "1+1"
    assert [message["role"] for message in problem.problem.messages] == ["system", "user"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (verl_row("1+1", None), "there is no answer"),
        (verl_row("1+1", []), "there is no answer"),
        (verl_row("1+1", float("nan")), "there is no answer"),
        (verl_row("1+1", "  "), "is empty"),
        (verl_row("1+1", {"value": 2}), "expected the answer"),
        (verl_row(" ", "2"), "the question is empty"),
        ({**verl_row("1+1", "2"), "prompt": "1+1"}, "expected chat messages"),
        ({**verl_row("1+1", "2"), "prompt": [{"role": "user"}]}, "no role or no text"),
        ({**verl_row("1+1", "2"), "prompt": [{"role": "system", "content": "x"}]}, "no user message"),
        ({"prompt": verl_row("1+1", "2")["prompt"]}, "there is no answer"),
        ([1, 2], "no object"),
    ],
)
def test_a_bad_row_is_named_with_its_number(tmp_path, of_rows, row, fault):
    found = of_rows(verl_row("0+0", "0"), row)
    ((what, one),) = found.faults.items()
    assert fault in what
    assert one.fix
    assert (one.count, one.places) == (1, [f"{tmp_path / 'a.jsonl'} row 1 (line 2)"])
    assert len(found.problems) == 1


def test_a_line_that_is_no_json_is_a_bad_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "1+1", "answer": 2}\n\n{"question": \n')
    found = collected(path, PLAIN)
    assert found.faults["the line is no JSON"].places == [f"{path} row 1 (line 3)"]
    assert len(found.problems) == 1


def test_an_answer_without_the_mark_is_a_bad_row(of_rows):
    columns = Columns("question", "answer", answer_after="####")
    found = of_rows({"question": "1+1", "answer": "2"}, columns=columns)
    assert "'####' is not in the answer" in next(iter(found.faults))


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("none.jsonl", None, "no such file"),
        ("a.csv", "x", "not read"),
        ("a.parquet", "x", "no readable parquet"),
        ("a.json", '{"a": 1}', "expected an array"),
        ("a.json", "[", "no readable JSON"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path, name, content, hint):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=hint) as caught:
        collected(path)
    assert str(path) in caught.value.what
    assert caught.value.fix


def test_a_parquet_file_without_the_columns_says_which_it_has(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"frage": "1+1"}]), path)
    with pytest.raises(DataError, match="found: frage"):
        collected(path)


# --- duplicates -------------------------------------------------------------------------------------


def test_duplicates_are_counted_and_the_first_row_stays(of_rows):
    rows = [verl_row("Find\n  é.", "2"), verl_row("Find é. ", "2.0"), verl_row("Find é!", "2")]
    found = of_rows(*rows)
    assert (found.rows, found.duplicates, len(found.problems), found.bad_rows) == (3, 1, 2, 0)
    assert next(iter(found.problems.values())).question == "Find\n  é."


def test_duplicates_are_found_across_files(tmp_path):
    paths = [write_lines(tmp_path / name, [verl_row("1+1", "2")]) for name in ("a.jsonl", "b.jsonl")]
    found = collect(read_rows(paths, VERL.names), VERL, None)
    assert (len(found.problems), found.duplicates) == (1, 1)


def test_a_problem_with_two_answers_is_left_out_and_both_rows_are_named(of_rows):
    rows = [verl_row("1+1", "2"), verl_row("3+3", "6"), verl_row("1+1", "3"), verl_row("1+1", "2")]
    found = of_rows(*rows)
    assert [problem.question for problem in found.problems.values()] == ["3+3"]
    places = [place for fault in found.faults.values() for place in fault.places]
    assert [place.partition(" row ")[2][0] for place in places] == ["2", "0"]


def test_case_and_signs_make_different_problems():
    assert problem_key("Find X") != problem_key("Find x")
    assert problem_key("1+1") != problem_key("1-1")
    assert problem_key("x²") != problem_key("x2")


def test_typesetting_alone_looks_alike_and_arithmetic_does_not():
    assert look_alike("Find $x$, if \\{x\\} = 2.") == look_alike("find x if x=2")
    assert look_alike("Compute 1+2-3") != look_alike("Compute 1-2+3")


# --- the instruction around a problem -----------------------------------------------------------------


def dapo(question: str) -> str:
    return f"{DAPO_INSTRUCTION.before}\n\n{question}\n\n{DAPO_INSTRUCTION.after}"


def test_dapos_instruction_is_taken_off_and_counted(of_rows):
    rows = [verl_row(dapo("What is $1+1$?"), "2"), verl_row("What is $1+1$?", "2"), verl_row("2+2", "4")]
    found = of_rows(*rows, instruction=DAPO_INSTRUCTION)
    assert [problem.question for problem in found.problems.values()] == ["What is $1+1$?", "2+2"]
    assert (found.stripped, found.not_stripped, found.duplicates) == (1, 2, 1)


def test_an_instruction_goes_whole_or_stays_and_its_parts_do_not_overlap():
    texts = ("Solve: 1+1 (end)", "Solve:1+1", "1+1 (end)", "Solve: (end)")
    assert [Instruction("Solve:", "(end)").strip(one) for one in texts] == ["1+1", None, None, ""]
    assert Instruction("abc", "cd").strip("abcd") is None


def test_nothing_but_the_instruction_is_a_bad_row(of_rows):
    found = of_rows(verl_row(dapo(""), "2"), instruction=DAPO_INSTRUCTION)
    assert "the question is empty" in found.faults


def chat(system: str, answer: str) -> dict:
    row = verl_row("Add 1 and 1", answer)
    return {**row, "prompt": [{"role": "system", "content": system}, *row["prompt"]]}


def test_the_same_question_in_another_chat_is_another_problem(of_rows):
    chats = [chat("Use base 10", "2"), chat("Use base 2", "10"), chat("Use  base 10", "2")]
    found = of_rows(*chats, verl_row("Add 1 and 1", "2"))
    assert (len(found.problems), found.duplicates, found.bad_rows) == (3, 1, 0)


def test_half_of_a_surrogate_pair_is_a_bad_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1 + 1\\ud800", "answer": "2"}\n{"question": "1 + 1 🙂", "answer": "2"}\n')
    first, second = read_rows([path], ("question", "answer"))
    assert isinstance(first.data, RowError) and "surrogate" in first.data.what
    assert second.data["question"] == "1 + 1 🙂"
