"""Published files by name: rows of each form as their authors wrote them become problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from preparing import NEVER, questions, read_parquet, report_of, verl_row, write_lines

from marsrl_verl.data.problems import Collected, collect
from marsrl_verl.data.rows import DataError, read_rows
from marsrl_verl.data.sources import DAPO_INSTRUCTION, SOURCES
from marsrl_verl.data_preparation.application import main
from marsrl_verl.data_preparation.command_line import parse_arguments
from marsrl_verl.rewards.by_ability import MATH, QA
from marsrl_verl.rewards.math_grading import grade

TREE = Path(__file__).parents[2]
PUBLISHED = TREE / "../shared/data"
"""Files of others, which are no part of the project."""
BOX = " Let's think step by step and output the final answer within \\boxed{}."
TOOLS = "Call a tool. The final answer is \\[ \boxed{answer} \\]."  # the backspace is the files' own


def chat(question: str, system: str | None = None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question}]


def agent_row(question: str, answer: Any, **more: Any) -> dict[str, Any]:
    """As ARPO's files have them."""
    extra = {"index": 3, "question": question, "split": "train"}
    row = {"data_source": "DR_mix", "prompt": chat(question, TOOLS), "ability": None, "extra_info": extra}
    return {**row, "reward_model": {"ground_truth": answer}, "metadata": None, **more}


def rema_row(question: str, answer: str, **more: Any) -> dict[str, Any]:
    columns = {"question": question, "groundtruth": rf"So it is $\boxed{{{answer}}}$.", "subset": "MATH"}
    row = verl_row(question + BOX, answer, data_source="ReMA-math", ability="math")
    return {**row, "extra_info": {"index": 0, "split": "train"}, **columns, **more}


def mixed_row(question: str, answer: str, ability: str) -> dict[str, Any]:
    return agent_row(question, answer, ability=ability, data_source="DR_grpo_mix")


SUM = [("1+1?", "2")]
WHO = [("Who?", "Ada")]
DAPO = f"{DAPO_INSTRUCTION.before}\n\n1+1?\n\n{DAPO_INSTRUCTION.after}"
MINERVA = verl_row("1+1?" + BOX, ["9.6\n"], data_source="minerva", ability=None, extra_info={"index": 0})
SOLUTION = r"It is not \boxed{3}, so we add: $\boxed{\frac{4}{2}}$."
MUSIQUE = {"id": "2hop__1_2", "paragraphs": [], "answer_aliases": [], "answerable": True}
HOTPOT = {"_id": "5a8b", "type": "comparison", "level": "hard", "supporting_facts": [["Ada", 0]]}
PLAIN_MATH = [{"question": "1+1?", "answer": 2}, {"question": "1/2 of 285?", "answer": "142.5\n"}]
PLAIN_QA = [
    {"question": "Where?", "answer": ["New York", "NYC"]},
    {"question": "Who?", "answer": "Ada Lovelace"},
    {"question": "When?", "answer": "['1815', 'in 1815']"},
]
QA_PROBLEMS = [("Where?", '["New York", "NYC"]'), ("Who?", "Ada Lovelace"), ("When?", '["1815", "in 1815"]')]

Case = tuple[str, list[dict[str, Any]], tuple[list[tuple[str, str]], str, str]]
"""The file's name, its rows, and what they become: questions with references, ability and data source of the
first."""

CASES: dict[str, Case] = {
    "arpo_train": (
        "train_10k.parquet",
        [mixed_row("1+1?", "2", "math"), mixed_row("Who?", "Ada", "qa")],
        ([*SUM, *WHO], MATH, "DR_grpo_mix"),
    ),
    "arpo_deep_search": (
        "gaia_test.parquet",
        [agent_row("Who?", "Ada"), agent_row("Where?", "Rome")],
        ([*WHO, ("Where?", "Rome")], QA, "DR_mix"),
    ),
    "rema_math": (
        "train_minimal.parquet",
        [rema_row("1+1?", "2", level="Level 3", type="Algebra")],
        (SUM, MATH, "MATH"),
    ),
    "attnrl": ("minerva_4.parquet", [MINERVA] * 4, ([("1+1?", "9.6")], MATH, "minerva")),
    "deepscaler": (
        "deepscaler.json",
        [{"problem": "1+1?", "answer": "2", "solution": ""}],
        (SUM, MATH, "deepscaler"),
    ),
    "dapo_math": (
        "dapo-math-17k.parquet",
        [verl_row(DAPO, "2", data_source="math_dapo", ability="MATH", extra_info={"index": "a-b"})] * 3,
        (SUM, MATH, "math_dapo"),
    ),
    "gsm8k": (
        "train.jsonl",
        [{"question": "How many?", "answer": "3*4 = <<3*4=12>>12\n#### 12"}],
        ([("How many?", "12")], MATH, "gsm8k"),
    ),
    "math": (
        "train-00000-of-00001.parquet",
        [{"problem": "1+1?", "level": "Level 1", "type": "Algebra", "solution": SOLUTION}],
        ([("1+1?", r"\frac{4}{2}")], MATH, "math"),
    ),
    "hotpotqa": (
        "hotpot_dev_distractor_v1.json",
        [{**HOTPOT, "question": "Who?", "answer": "yes", "context": [["Ada", ["She was born."]]]}],
        ([("Who?", "yes")], QA, "hotpotqa"),
    ),
    "2wiki": (
        "dev.json",
        [{"_id": "8813", "type": "compositional", "question": "Who?", "answer": "Ada", "evidences": []}],
        (WHO, QA, "2wiki"),
    ),
    "musique": (
        "musique_ans_v1.0_dev.jsonl",
        [
            {**MUSIQUE, "question": "Who?", "answer": "Ada", "answer_aliases": ["Ada Lovelace", "Ada"]},
            {**MUSIQUE, "question": "Where?", "answer": "Rome"},
        ],
        ([("Who?", '["Ada", "Ada Lovelace"]'), ("Where?", "Rome")], QA, "musique"),
    ),
    "bamboogle": (
        "test-00000-of-00001.parquet",
        [{"Question": "Who?", "Answer": "Ada"}],
        (WHO, QA, "bamboogle"),
    ),
}
for name in ("hotpotqa", "2wiki", "musique", "bamboogle", "simpleqa", "webwalker", "xbench", "gaia", "hle"):
    CASES[f"arpo_{name}"] = ("test.jsonl", PLAIN_QA, (QA_PROBLEMS, QA, name))
for name in ("gsm8k", "math500", "aime24", "aime25"):
    CASES[f"arpo_{name}"] = ("test.jsonl", PLAIN_MATH, ([*SUM, ("1/2 of 285?", "142.5")], MATH, name))


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_lines(path, rows)
    return path


def collected(name: str, path: Path) -> Collected:
    source = SOURCES[name]
    return collect(read_rows([path], source.columns.names), source.columns, source.instruction)


def test_every_source_has_rows_here():
    assert CASES.keys() == SOURCES.keys()


@pytest.mark.parametrize("name", SOURCES)
def test_rows_of_a_published_form_become_problems(tmp_path, name):
    file, rows, (expected, ability, data_source) = CASES[name]
    found = collected(name, write(tmp_path / file, rows))
    assert found.faults == {}
    problems = [one.problem for one in found.problems.values()]
    assert [(one.question, one.ground_truth) for one in problems] == expected
    assert (problems[0].ability, problems[0].data_source) == (ability, data_source)
    assert all(one.ability in (MATH, QA) for one in problems)


def test_an_agents_system_message_stays_and_its_commands_are_repaired(tmp_path):
    found = collected("arpo_deep_search", write(tmp_path / "a.parquet", [agent_row("Who?", "Ada")]))
    (one,) = found.problems.values()
    assert one.problem.messages[0] == {"role": "system", "content": TOOLS.replace("\b", "\\b")}
    assert found.repaired == 1


def test_a_system_message_is_taken_off_on_request(tmp_path):
    source = write(tmp_path / "a.parquet", [agent_row("Who?", "Ada")])
    assert prepare("arpo_deep_search", source, tmp_path / "out", "--drop-system") == 0
    (row,) = read_parquet(tmp_path / "out/train.parquet")
    assert row["prompt"] == chat("Who?")


def test_levels_are_kept(tmp_path):
    rows = [rema_row("1+1?", "2", level=4, subject="Algebra")]
    (one,) = collected("rema_math", write(tmp_path / "a.parquet", rows)).problems.values()
    extra = {"index": 0, "split": "train", "level": 4, "subject": "Algebra"}
    assert json.loads(one.extra) == extra


def test_answers_of_a_column_with_holes_are_whole_numbers_and_holes_are_bad_rows(tmp_path):
    rows = [{"problem": f"{i}?", "answer": answer} for i, answer in enumerate((142.0, None, 0.5))]
    found = collected("deepscaler", write(tmp_path / "a.parquet", rows))
    assert [one.problem.ground_truth for one in found.problems.values()] == ["142", "0.5"]
    assert found.bad_rows == 1


def test_an_interval_is_no_list_of_answers(tmp_path):
    rows = [{"problem": "Where?", "answer": "[1, 2]"}, {"problem": "When?", "answer": '["a"'}]
    found = collected("deepscaler", write(tmp_path / "a.json", rows))
    assert [one.problem.ground_truth for one in found.problems.values()] == ["[1, 2]", '["a"']


@pytest.mark.parametrize(("answer", "reference"), [("142", "142.0"), ("10000", "10{,}000"), ("9.6", "9.6\n")])
def test_references_as_published_files_write_them_are_met(answer, reference):
    assert grade(rf"\boxed{{{answer}}}", [reference])["correct"]


# --- the command ------------------------------------------------------------------------------------


def prepare(name: str, source: Path, output: Path, *more: str) -> int:
    words = ["--source", name, "--input", str(source), "--output", str(output), "--without-answers", *more]
    return main([*words, "model=tiny", "cluster=cpu"], NEVER)


def test_few_bad_rows_are_left_out_by_name(tmp_path, capsys):
    rows = [agent_row(f"{i}?", str(i), ability="math") for i in range(600)]
    rows[7]["reward_model"] = {"ground_truth": ""}
    rows.append(agent_row("8?", "another", ability="math"))
    source = write(tmp_path / "train_10k.parquet", rows)
    assert prepare("arpo_train", source, tmp_path / "out") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "is empty: 1 row" in shown and "row 7, counted from 0" in shown
    assert "row 600" in shown
    assert len(questions(tmp_path / "out/train.parquet")) == 598
    found = report_of(tmp_path / "out")["source"]
    assert (found["name"], found["bad_rows_limit"]) == ("arpo_train", 0.01)
    assert found["abilities"] == {"math": 598}
    assert sum(one["count"] for one in found["bad_rows"].values()) == 3


def test_more_bad_rows_than_that_are_another_file(tmp_path, capsys):
    rows = [{"question": f"{i}?", "answer": f"#### {i}" if i % 10 else str(i)} for i in range(200)]
    source = write(tmp_path / "train.jsonl", rows)
    assert prepare("gsm8k", source, tmp_path / "out") == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "20 of 200 rows are no usable problem (at most 0.01 of them may be)" in shown
    assert "row 0 (line 1)" in shown and "those of gsm8k" in shown
    assert not (tmp_path / "out").exists()
    assert prepare("gsm8k", source, tmp_path / "out", "--bad-rows", "0.1") == 0
    assert prepare("gsm8k", source, tmp_path / "out", "--bad-rows", "0.09", "--replace") == 2
    assert prepare("gsm8k", source, tmp_path / "out", "--bad-rows", "refuse", "--replace") == 2


@pytest.mark.parametrize("value", ["some", "-0.1", "1.5", "nan"])
def test_a_limit_of_bad_rows_is_a_share(tmp_path, value):
    words = ["--input", "a.jsonl", "--output", "b", "--without-answers", "--bad-rows", value]
    with pytest.raises(DataError, match="expected refuse, skip, or a share"):
        parse_arguments(words)


@pytest.mark.parametrize(
    "option", ["--question-column=q", "--answer-after=##", "--ability=qa", "--strip-dapo"]
)
def test_a_source_says_where_parts_stand_by_itself(option):
    words = ["--input", "a.jsonl", "--output", "b", "--without-answers", "--source", "gsm8k", option]
    with pytest.raises(DataError, match="--source gsm8k says that already"):
        parse_arguments(words)


def test_the_ability_is_written_as_named_and_none_is_made_up(tmp_path, capsys):
    source = write(tmp_path / "a.jsonl", [{"q": "Who?", "a": "Ada"}, {"q": "Where?", "a": "Rome"}])
    plain = ["--input", str(source), "--question-column", "q", "--answer-column", "a", "--without-answers"]
    plain += ["model=tiny", "cluster=cpu"]
    assert main([*plain, "--output", str(tmp_path / "none")], NEVER) == 0
    assert "2 problems name no ability" in capsys.readouterr().out
    assert [row["ability"] for row in read_parquet(tmp_path / "none/train.parquet")] == [None, None]
    assert main([*plain, "--output", str(tmp_path / "qa"), "--ability", "qa"], NEVER) == 0
    assert [row["ability"] for row in read_parquet(tmp_path / "qa/train.parquet")] == ["qa", "qa"]


def test_the_page_has_every_source():
    """But for those of a method that was taken out, with its lines of documentation."""
    page = (TREE / "docs/guides/data.md").read_text()
    gone = {one for one in ("arpo", "attnrl", "rema") if not (TREE / f"docs/methods/{one}.md").exists()}
    there = [name for name in SOURCES if name.partition("_")[0] not in gone]
    assert [name for name in there if f"`{name}`" not in page] == []


# --- files of others --------------------------------------------------------------------------------

PUBLISHED_FILES = [
    # name, file, problems, what the first one asks (its beginning), its reference
    ("arpo_hotpotqa", "qa/arpo_hotpotqa_test.jsonl", 200, "Which man who", "Frank Lowy"),
    ("arpo_2wiki", "qa/arpo_2wiki_test.jsonl", 200, "Where was the director", '["the five boroughs", "City'),
    ("arpo_musique", "qa/arpo_musique_test.jsonl", 200, "Where is the Bridge", "passes over the Rio"),
    ("arpo_bamboogle", "qa/arpo_bamboogle_test.jsonl", 125, "Who was president", "james madison"),
    ("arpo_simpleqa", "qa/arpo_simpleqa_test.jsonl", 500, "Who received", "Michio Sugeno"),
    ("arpo_deep_search", "qa/arpo_hard_search_1k.parquet", 1071, "who illustrated", "E. H. Shepard"),
    ("rema_math", "math/rema_math_test500.parquet", 500, "Convert the point", r"\left( 3, \frac{\pi}{2}"),
    ("rema_math", "math/rema_math_train_minimal.parquet", 133, "Jimmy owns", "420"),
    ("gsm8k", "math/gsm8k_train_first500.jsonl", 500, "Natalia sold", "72"),
    ("gsm8k", "math/gsm8k_test.jsonl", 1319, "Janet", "18"),
]


@pytest.mark.parametrize(("name", "file", "count", "asks", "reference"), PUBLISHED_FILES)
def test_published_files_load_as_they_are(name, file, count, asks, reference):
    path = PUBLISHED / file
    if not path.is_file():
        pytest.skip(f"{path} is not here: published files are no part of the project")
    found = collected(name, path)
    problems = [one.problem for one in found.problems.values()]
    assert (len(problems), found.bad_rows) == (count, 0)
    assert problems[0].question.startswith(asks) and problems[0].ground_truth.startswith(reference)
    assert {one.ability for one in problems} == {SOURCES[name].columns.ability}
    assert not [one.question for one in problems if "\\boxed" in one.question]
