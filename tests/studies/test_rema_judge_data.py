"""Pairs of answers from public layouts: rows, both orders, and splits that share nothing."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.single_turn.judge import JudgePrompts
from marsrl_verl.data.files import read_report
from marsrl_verl.data.rows import DataError
from studies.rema_data.judge_data import (
    Pair,
    SplitRule,
    both_orders,
    main,
    read_pairs,
    rows_in_file_order,
    shared_instructions,
    split,
)

REWARD_BENCH = {"prompt": "Say hi", "chosen": "hi", "rejected": "bye", "subset": "chat", "id": 7}
JUDGE_BENCH = {
    "pair_id": "x1",
    "source": "maths",
    "question": "1+1?",
    "response_A": "3",
    "response_B": "2",
    "label": "B>A",
}
LLM_BAR = {"input": "List one.", "output_1": "one", "output_2": "two", "label": 1}
SOLUTIONS = {
    "question": "2+2?",
    "ground_truth": "4",
    "small": {"is_correct": False, "solution": "5"},
    "large": {"is_correct": True, "solution": "4"},
    "larger": {"is_correct": True, "solution": "four"},
}


def file_of(folder, rows, name="pairs.jsonl"):
    path = folder / name
    text = json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (REWARD_BENCH, [Pair("Say hi", "hi", "bye", "chat", "7")]),
        (JUDGE_BENCH, [Pair("1+1?", "2", "3", "maths", "x1", better_first=False)]),
        (LLM_BAR, [("List one.", "one", "two", "pairs")]),
        (SOLUTIONS, [("2+2?", "4", "5", "pairs"), ("2+2?", "four", "5", "pairs")]),
    ],
)
def test_every_layout(tmp_path, row, expected):
    found, _ = read_pairs([file_of(tmp_path, [row])])
    plain = [(one.instruction, one.better, one.worse, one.subset) for one in found]
    wanted = [
        (one.instruction, one.better, one.worse, one.subset) if isinstance(one, Pair) else one
        for one in expected
    ]
    assert plain == wanted
    if isinstance(expected[0], Pair):
        assert found == expected


def test_an_array_and_a_parquet_file_and_chats(tmp_path):
    array = file_of(tmp_path, [LLM_BAR], "bar.json")
    chat = {**REWARD_BENCH, "prompt": [{"role": "user", "content": "Say hi"}]}
    table = tmp_path / "bench.parquet"
    pd.DataFrame([chat]).to_parquet(table)
    assert [one.instruction for one in read_pairs([array, table])[0]] == ["List one.", "Say hi"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?", "answer": "!"}, "of no known layout"),
        ({**JUDGE_BENCH, "label": "A=B"}, "found the label 'A=B'"),
        ({**LLM_BAR, "output_2": "one"}, "both answers are the same"),
        ({**LLM_BAR, "output_2": "one \n"}, "both answers are the same"),
        ({**LLM_BAR, "input": " "}, "the instruction is empty"),
        ({**LLM_BAR, "label": None}, "of no known layout"),
        ({**LLM_BAR, "label": 3}, "found the label 3"),
        ({**REWARD_BENCH, "chosen": 5}, "found int"),
        ({**REWARD_BENCH, "chosen": [{"role": "assistant"}]}, "found NoneType"),
        ({**REWARD_BENCH, "prompt": [{"role": "user", "content": "a"}] * 2}, "a chat of several messages"),
        ({**SOLUTIONS, "small": {"is_correct": "False", "solution": "5"}}, "found is_correct = 'False'"),
        ({**SOLUTIONS, "small": {"is_correct": False, "solution": "4"}}, "called right and wrong"),
        ({**LLM_BAR, "label": 2}, "another row prefers the other answer"),
        ([1], "no object with columns"),
    ],
)
def test_a_row_that_is_no_pair_is_named_and_costs_no_other_one(tmp_path, row, said):
    opposed = row == {**LLM_BAR, "label": 2}
    file = file_of(tmp_path, [REWARD_BENCH, LLM_BAR, row])
    with pytest.raises(DataError, match=said) as refusal:
        read_pairs([file])
    assert f"{1 + opposed} of 3 rows are no usable pair" in refusal.value.what
    assert "pairs.jsonl row 2 (line 3)" in refusal.value.what and "--bad-rows skip" in refusal.value.fix
    pairs, counts = read_pairs([file], skip_bad=True)
    assert [one.instruction for one in pairs] == (["Say hi"] if opposed else ["Say hi", "List one."])
    assert (counts.rows, counts.bad_rows) == (3, 1 + opposed)


def test_lines_in_other_encodings_are_bad_rows_and_copies_are_counted(tmp_path):
    path = tmp_path / "pairs.jsonl"
    good = json.dumps(LLM_BAR).encode() + b"\n"
    other = json.dumps({**LLM_BAR, "input": "é"}, ensure_ascii=False).encode("latin-1") + b"\n"
    path.write_bytes(b"\xef\xbb\xbf" + good + other + b"{\n" + good)
    pairs, counts = read_pairs([path], skip_bad=True)
    assert len(pairs) == 1 and (counts.rows, counts.copies) == (4, 1)
    assert {what: len(places) for what, places in counts.bad.items()} == {
        "the line is not UTF-8 text": 1,
        "the line is no JSON": 1,
    }
    assert "(line 2)" in counts.bad["the line is not UTF-8 text"][0]


def test_solutions_in_parquet_labels_with_gaps_and_rows_without_a_pair(tmp_path):
    right = {**SOLUTIONS, "question": "1+1?", "small": {"is_correct": True, "solution": "2"}}
    table = tmp_path / "solutions.parquet"
    pd.DataFrame([SOLUTIONS, right]).to_parquet(table)
    pairs, counts = read_pairs([table])
    assert [(one.better, one.worse) for one in pairs] == [("4", "5"), ("four", "5")]
    assert counts.without_pair == 1 and counts.bad == {}
    table = tmp_path / "bar.parquet"
    pd.DataFrame([LLM_BAR, {**LLM_BAR, "label": None}]).to_parquet(table)
    pairs, counts = read_pairs([table], skip_bad=True)
    assert [one.better for one in pairs] == ["one"] and counts.bad_rows == 1


def test_the_command_skips_when_told_and_overwrites_no_input(tmp_path, capsys):
    bench = file_of(tmp_path, [LLM_BAR, {**LLM_BAR, "label": "tie\x1b"}])
    test = tmp_path / "test.parquet"
    assert main([str(bench), "--test", str(test)]) == 2 and not test.exists()
    said = capsys.readouterr().err
    assert "1 of 2 rows are no usable pair" in said and "\x1b" not in said
    assert main([str(bench), "--test", str(test), "--bad-rows", "skip"]) == 0
    said = capsys.readouterr().out
    assert "2 rows: 1 pairs, 0 copies, 0 rows without a pair, 1 bad rows" in said
    assert "skipped: found the label" in said and "(line 2)" in said
    for words, what in (
        (["--test", str(bench)], "must all be different files"),
        (["--test", str(test), "--train", str(test)], "must all be different files"),
        (["--test", str(test), "--seed", "3"], "--seed is of the split"),
    ):
        with pytest.raises(SystemExit):
            main([str(bench), *words])
        assert what in capsys.readouterr().err


def test_a_pair_is_two_rows():
    pair = Pair("Say hi", "hi", "bye", "chat", "7")
    rows = [one.row(at) for at, one in enumerate(both_orders([pair]))]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["A", "B"]
    assert [row["extra_info"]["answer_a"] for row in rows] == ["hi", "bye"]
    assert [row["extra_info"]["answer_b"] for row in rows] == ["bye", "hi"]
    assert rows[0]["prompt"] == [{"role": "user", "content": "Say hi"}]
    assert [row["extra_info"]["index"] for row in rows] == [0, 1]
    other = rows_in_file_order([Pair("q", "good", "bad", "s", "n", better_first=False)])
    assert [(one.row(0)["reward_model"]["ground_truth"], len(other)) for one in other] == [("B", 1)]


def some_pairs(instructions: int, each: int, subsets: int) -> list[Pair]:
    return [
        Pair(f"Instruction  {i}", f"good {i} {k}", f"bad {i} {k}", f"s{i % subsets}", f"{i}-{k}")
        for i in range(instructions)
        for k in range(each)
    ]


@given(
    instructions=st.integers(4, 30),
    each=st.integers(1, 3),
    subsets=st.integers(1, 4),
    seed=st.integers(0, 9),
    share=st.floats(0.2, 0.7),
)
def test_splits_share_nothing_and_lose_nothing(instructions, each, subsets, seed, share):
    rows = both_orders(some_pairs(instructions, each, subsets))
    wanted = max(2 * each, int(share * len(rows)))
    for rule in SplitRule:
        training, test = split(rows, wanted, rule, seed)
        assert sorted(map(id, training + test)) == sorted(map(id, rows))
        assert len(test) <= wanted
        assert len(test) > wanted - 2 * each
        assert (training, test) == split(rows, wanted, rule, seed)
        if rule is SplitRule.STRICT:
            assert shared_instructions(training, test) == 0


def test_the_loose_split_may_leak_the_other_order():
    rows = both_orders(some_pairs(40, 1, 2))
    training, test = split(rows, 20, SplitRule.LOOSE, 1)
    assert shared_instructions(training, test) > 0
    contents = {(row.pair, row.swapped) for row in training}
    assert not contents & {(row.pair, row.swapped) for row in test}


def test_subsets_are_evenly_represented():
    pairs = some_pairs(20, 1, 1) + [Pair(f"few {i}", "g", "b", "rare", f"r{i}") for i in range(5)]
    _, test = split(both_orders(pairs), 16, SplitRule.STRICT, 1)
    counts = [sum(row.pair.subset == name for row in test) for name in ("s0", "rare")]
    assert counts == [8, 8]


def test_the_command(tmp_path, capsys):
    bench = file_of(
        tmp_path, [{**REWARD_BENCH, "prompt": f"Say {i}", "id": i} for i in range(10)], "bench.jsonl"
    )
    train, test = tmp_path / "out" / "train.parquet", tmp_path / "out" / "test.parquet"
    words = [str(bench), "--train", str(train), "--test", str(test), "--test-rows", "6"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "strict split: 0 test rows have an instruction of the training data" in said
    assert (len(pd.read_parquet(train)), len(pd.read_parquet(test))) == (14, 6)
    assert main([str(bench), "--test", str(test), "--one-order"]) == 0
    assert len(pd.read_parquet(test)) == 10
    assert main([str(tmp_path / "none.jsonl"), "--test", str(test)]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_what_the_command_writes_is_data_without_a_fault(tmp_path):
    """Both orders of a pair are two problems of one question; a pair that comes again is one."""
    rows = [{**REWARD_BENCH, "prompt": f"Say {n}", "id": n} for n in range(4)]
    file, target = file_of(tmp_path, rows), tmp_path / "test.parquet"
    main([str(file), "--test", str(target)])
    report = read_report(target, "val", row_texts=JudgePrompts().row_texts)
    assert (report.rows, report.faults, report.duplicates, report.contradictions) == (8, {}, 0, [])
    assert report.row_texts == {"answers": "hi\nbye"} and len(report.problems) == 4
    frame = pd.read_parquet(target)
    pd.concat([frame, frame.iloc[:1]]).to_parquet(target)
    assert read_report(target, "val", row_texts=JudgePrompts().row_texts).duplicates == 1
