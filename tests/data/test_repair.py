"""LaTeX commands that a string literal has broken, wherever rows are read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.data.columns import Columns
from marsrl_verl.data.files import read_questions, read_report
from marsrl_verl.data.problems import collect
from marsrl_verl.data.repair import repaired
from marsrl_verl.data.rows import Row

COMMANDS = r"\boxed{x} \beta \bar{x} \bigl( \binom{n}{k} \frac{1}{2} \forall \alpha \approx \vec{v} \varphi"
BROKEN = COMMANDS
for _letter, _sign in (("a", "\a"), ("b", "\b"), ("f", "\f"), ("v", "\v")):
    BROKEN = BROKEN.replace("\\" + _letter, _sign)


def test_every_command_comes_back():
    assert not any(command in BROKEN for command in ("\\b", "\\f", "\\a", "\\v"))
    assert repaired(BROKEN) == COMMANDS


@pytest.mark.parametrize(
    "text",
    [
        "page one\fracing ahead",  # a form feed, and another word
        "one\ttimes two\nneq",  # may be meant
        "\x08",
        "\x08ox",
        "oxed",
        r"\boxed{1}",
    ],
)
def test_what_is_no_broken_command_stays(text):
    assert repaired(text) == text


@given(st.text(alphabet="\a\b\f\v\\boxedfrac {1}", max_size=30))
def test_repair_happens_once(text):
    assert repaired(repaired(text)) == repaired(text)


SYSTEM = "Put it in \x08oxed{}."


def row(question: str, answer: object = "3", **more: object) -> dict[str, object]:
    prompt = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return {"prompt": prompt, "data_source": "d", "reward_model": {"ground_truth": answer}, **more}


def test_rows_are_read_repaired_and_counted():
    rows = [
        Row("f row 0", row("1+2")),
        Row("f row 1", {**row("2+2"), "prompt": [{"role": "user", "content": "2"}]}),
    ]
    found = collect(rows, Columns(), None)
    first, second = found.problems.values()
    assert first.problem.messages[0]["content"] == r"Put it in \boxed{}."
    assert (first.repaired, second.repaired, found.repaired) == (True, False, 1)


def test_an_answer_is_repaired_too():
    rows = [Row("f", row("1+2", "\x0crac{1}{2}")), Row("g", row("1+3", ["\x0crac{1}{3}", "a third"]))]
    first, second = collect(rows, Columns(), None).problems.values()
    assert first.problem.ground_truth == r"\frac{1}{2}"
    assert json.loads(second.problem.ground_truth) == [r"\frac{1}{3}", "a third"]
    assert first.repaired and second.repaired


def test_a_broken_row_is_the_same_problem_as_a_whole_one():
    whole = row("What is \x08eta?")
    other = {**row("What is \\beta?"), "prompt": [{"role": "system", "content": r"Put it in \boxed{}."}]}
    other["prompt"].append({"role": "user", "content": "What is \\beta?"})
    found = collect([Row("a", whole), Row("b", other)], Columns(), None)
    assert (len(found.problems), found.duplicates) == (1, 1)


def test_checks_and_recorded_answers_see_what_is_asked(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    # ARPO's released layout: `ability` and `metadata` are columns of nulls.
    rows = [row(f"What is \x08eta of {k}?", str(k), ability=None, metadata=None) for k in range(3)]
    path = tmp_path / "released.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    report = read_report(path, "train")
    assert (report.rows, report.repaired, report.faults) == (3, 3, {})
    assert [one.text for one in read_questions(path, "prompt", None)][1] == r"What is \beta of 1?"
