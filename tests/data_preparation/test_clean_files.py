"""Files without pass rates: repaired, each problem once, without evaluation sets and overlong prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from preparing import MODEL, NEVER, prepare, questions, read_parquet, report_of, verl_row, write_lines

from marsrl_verl.config.application import main as train_main
from marsrl_verl.data_preparation.application import main

ROWS = [
    verl_row("Compute 1+2", "3"),
    verl_row("Compute  1+2.", "3"),
    verl_row("Compute 2+3", ["5", "five"], ability="qa"),
    verl_row("What is \x08eta?", "4"),
    verl_row("Compute " + "+".join(["1"] * 40), "40"),
]


def clean(source: Path, output: Path, *more: str) -> int:
    return prepare(source, output, NEVER, "--without-answers", *more)


def kept(output: Path) -> list[str]:
    return questions(output / "train.parquet")


def train(source: Path) -> int:
    """A dry run of the training of a file."""
    files = [f"data.{split}_files={source}" for split in ("train", "val")]
    words = [*MODEL, "data=parquet", *files, "dry_run=true", "data.train_batch_size=2"]
    return train_main(words, lambda config: 1)


@pytest.fixture
def source(tmp_path) -> Path:
    return write_lines(tmp_path / "rows.jsonl", ROWS)


def test_nobody_is_asked_and_what_is_wrong_is_counted(source, output, capsys):
    assert clean(source, output, "--same-problem", "look") == 0
    assert kept(output) == ["Compute 1+2", "Compute 2+3", r"What is \beta?"]
    rows = read_parquet(output / "train.parquet")
    assert [row["ability"] for row in rows] == [None, "qa", None]
    assert rows[1]["reward_model"]["ground_truth"] == '["5", "five"]'
    assert (rows[0]["extra_info"]["pass_rate"], rows[0]["extra_info"]["answers"]) == (None, 0)
    said = capsys.readouterr().out
    assert "5 rows in" in said and "4 problems, 1 duplicates" in said
    assert "in 1 rows broken LaTeX commands" in said
    assert "3 kept, 1 with too long a prompt" in said
    assert report_of(output)["source"]["latex_repaired"] == 1
    assert not (output / "grades.jsonl").exists()


def test_training_takes_the_file(source, output, capsys):
    """Unless asked otherwise questions that look alike are two problems."""
    assert clean(source, output) == 0
    assert len(kept(output)) == 4
    assert train(output / "train.parquet") == 0
    assert "string literal" not in capsys.readouterr().out


def test_the_plan_says_what_is_repaired(source, capsys):
    assert train(source) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"1 of 5 rows of {source} hold LaTeX commands that a string literal" in shown


@pytest.fixture
def held_out(tmp_path) -> Path:
    return write_lines(tmp_path / "held_out.jsonl", [{"question": "compute 1 + 2", "answer": ["3"]}])


def test_problems_of_an_evaluation_set_are_dropped(source, held_out, output, capsys):
    assert clean(source, output, "--evaluation-set", str(held_out), "--same-problem", "look") == 0
    assert kept(output) == ["Compute 2+3", r"What is \beta?"]
    assert f"1 of 4 problems stand in {held_out}" in capsys.readouterr().out
    found = report_of(output)["evaluation_sets"]
    assert (found["problems"], found["action"]) == (1, "drop")
    assert found["places"][0][1] == f"{held_out} row 0 (line 1)"


def test_they_are_kept_and_counted_where_that_is_asked_for(source, held_out, output):
    words = ("--evaluation-set", str(held_out), "--contaminated", "report")
    assert clean(source, output, *words) == 0
    assert "Compute 1+2" in kept(output)
    assert report_of(output)["evaluation_sets"]["problems"] == 2


def test_they_are_refused_where_that_is_asked_for(source, held_out, output, capsys):
    words = ("--evaluation-set", str(held_out), "--contaminated", "refuse")
    assert clean(source, output, *words) == 2
    assert "2 problems stand in evaluation sets" in capsys.readouterr().err
    assert not output.exists()


def test_nothing_may_be_left(tmp_path, output, held_out, capsys):
    source = write_lines(tmp_path / "rows.jsonl", ROWS[:1])
    assert clean(source, output, "--evaluation-set", str(held_out)) == 2
    assert "All problems stand in evaluation sets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--min-pass-rate", "0.1"], "--min-pass-rate: with --without-answers there are none"),
        (["-k", "4"], "--answers-per-problem: with"),
        (["--contaminated", "drop"], "speak of evaluation sets"),
        (["--evaluation-column", "q"], "speak of evaluation sets"),
    ],
)
def test_an_option_without_effect_is_refused(source, output, capsys, words, said):
    assert clean(source, output, *words) == 2
    assert said in capsys.readouterr().err


def test_without_a_model_prompts_are_not_measured(source, output, capsys):
    words = ["--input", str(source), "--output", str(output), "--without-answers"]
    assert main(words, NEVER) == 0
    assert "prompts were not measured" in capsys.readouterr().out
    assert len(kept(output)) == 5
