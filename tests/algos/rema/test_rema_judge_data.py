"""Pairs of answers from public layouts: rows, both orders, and splits that share nothing."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.algos.rema.judge_data import (
    Pair,
    SplitRule,
    both_orders,
    main,
    read_pairs,
    rows_in_file_order,
    shared_instructions,
    split,
)
from marsrl_verl.data.rows import DataError

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
    found = read_pairs([file_of(tmp_path, [row])])
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
    assert [one.instruction for one in read_pairs([array, table])] == ["List one.", "Say hi"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "?", "answer": "!"}, "of no known layout"),
        ({**JUDGE_BENCH, "label": "A=B"}, "found the label 'A=B'"),
        ({**LLM_BAR, "output_2": "one"}, "both answers are the same"),
        ({**LLM_BAR, "input": " "}, "the instruction is empty"),
    ],
)
def test_a_row_that_is_no_pair_is_named(tmp_path, row, said):
    with pytest.raises(DataError, match=said) as refusal:
        read_pairs([file_of(tmp_path, [LLM_BAR, row])])
    assert "pairs.jsonl" in refusal.value.what and refusal.value.fix


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
