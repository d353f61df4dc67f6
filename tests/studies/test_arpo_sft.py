"""Published transcripts with tools as rows for supervised training."""

from __future__ import annotations

import json

import pytest

from marsrl_verl.algos.arpo.prompts import AgentPrompts
from marsrl_verl.data.rows import DataError, Row
from studies.arpo_data import sft

GOOD = "<think>Look.</think><search>x</search><result>y</result><think>So.</think><answer>\\boxed{y}</answer>"


def shared(question: str, answer: str, **more) -> dict:
    """A row in the form of ARPO-SFT-54K."""
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    return {"conversations": turns, "system": "Put it in \x08oxed{}.", **more}


def built(*rows: dict, **more):
    return sft.build(
        (Row(f"row {k}", row) for k, row in enumerate(rows)), **{"tools": (), "limits": sft.Limits(), **more}
    )


def test_both_published_forms_become_the_same_messages():
    (one,), counts = built(shared("What is x?", GOOD))
    (other,), _ = built({"instruction": "Put it in \\boxed{}.", "input": "What is x?", "output": GOOD})
    assert one == other and counts == {"kept": 1} and one["calls"] == 1
    assert one["messages"] == [
        {"role": "system", "content": "Put it in \\boxed{}."},
        {"role": "user", "content": "What is x?"},
        {"role": "assistant", "content": GOOD},
    ]


def test_with_tools_the_system_message_is_that_of_runs():
    (one,), _ = built(shared("What is x?", GOOD), tools=("search", "python"))
    assert one["messages"][0]["content"] == AgentPrompts(("search", "python")).system
    assert [message["role"] for message in one["messages"]] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("It is y.", "not one answer"),
        (GOOD.replace("<result>y</result>", ""), "a call without a result"),
        (GOOD.replace("\\boxed{y}", "y"), "no box"),
        (GOOD.replace("</think><search>", "<search>"), "reasoning not enclosed"),
        (f"{GOOD} And more.", "text after the answer"),
        (None, "a question or an answer that is no text"),
    ],
)
def test_what_a_reward_would_call_ill_formed_is_left_out(answer, reason):
    rows, counts = built(shared("What is x?", answer))
    assert rows == [] and counts == {reason: 1}


def test_copies_long_ones_and_other_conversations_are_left_out():
    two = shared("What is x?", GOOD)["conversations"] * 2
    rows, counts = built(
        shared("What is x?", GOOD), shared("What is x?", GOOD), {"conversations": two}, shared("long?", GOOD),
        limits=sft.Limits(10, lambda messages: 11 if messages[1]["content"] == "long?" else 9),
    )  # fmt: skip
    assert len(rows) == 1
    assert counts == {"kept": 1, "a copy": 1, "not one question and one answer": 1, "too many tokens": 1}


def test_another_file_is_refused():
    with pytest.raises(DataError, match="row 0: found prompt, expected conversations or input, output"):
        built({"prompt": "What is x?"})


def test_the_command_writes_rows_and_says_what_it_left_out(tmp_path, capsys):
    import pyarrow.parquet as pq

    rows = [shared(f"What is {k}?", GOOD) for k in range(40)] + [shared("Which?", "no")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    words = [str(tmp_path / "rows.json"), "--output", str(tmp_path / "out"), "--validation", "0.2"]
    assert sft.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["transcripts"] == report["calls"] == 40 and report["left out"] == {"not one answer": 1}
    counted = {name: pq.read_table(tmp_path / f"out/{name}.parquet").num_rows for name in ("train", "val")}
    assert counted == report["rows"] and counted["val"] > 0 and sum(counted.values()) == 40
    assert sft.main([str(tmp_path / "none.json"), "--output", str(tmp_path / "out")]) == 1
    assert "there is no such file" in capsys.readouterr().err
