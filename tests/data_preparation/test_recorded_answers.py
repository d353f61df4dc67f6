"""Filtering from answers or grades that are on record, without a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from preparing import (
    NEVER,
    ScriptedClient,
    pass_rates,
    prepare,
    report_of,
    right_times,
    sums,
    verl_row,
    write_lines,
)

from marsrl_verl.data.problems import problem_key
from marsrl_verl.data.sources import DAPO_INSTRUCTION
from marsrl_verl.data_preparation.application import main


@pytest.fixture
def source(tmp_path) -> Path:
    return write_lines(tmp_path / "sums.jsonl", sums(4))


def filtered(source: Path, answers: list[dict] | Path, *more: str) -> int:
    """The status of the command with lines of answers, or with a file of them."""
    if not isinstance(answers, Path):
        answers = write_lines(source.parent / "answers.jsonl", answers)
    words = ["--input", str(source), "--output", str(source.parent / "out"), "--from-answers", str(answers)]
    return main([*words, "reward=exact", *more], NEVER)


def written_pass_rates(source: Path) -> dict[str, float]:
    return pass_rates(source.parent / "out" / "train.parquet")


def test_grades_and_responses_of_any_number_are_taken(output, source, capsys):
    lines = [
        {"question": " Compute  1+1", "grades": [1, 0, 0, 1]},
        {"problem": problem_key("Compute 1+2"), "responses": ["<think>1</think>\\boxed{3}", "\\boxed{4}"]},
        {"question": "Compute 1+2", "responses": ["I am at <think> \\boxed{3}", "\\boxed{3}"]},
        {"question": "Compute 1+3", "grades": [1.0, {"reward": 1.0, "finish": "stop"}]},
        {"question": "Compute 9+9", "grades": [1]},
    ]
    assert filtered(source, lines) == 0
    assert written_pass_rates(source) == {"Compute 1+1": 0.5, "Compute 1+2": 0.5}
    assert "2 kept, 1 too easy, 1 unanswered" in capsys.readouterr().out
    report = report_of(output)
    assert report["settings"]["lines about other problems"] == 1
    bars = [(bar["right"], bar["answers"], bar["problems"]) for bar in report["answers"]["histogram"]]
    assert bars == [(2, 4, 2), (2, 2, 1)]


def test_a_grade_log_serves_as_a_record(tmp_path, output, source):
    first = tmp_path / "first"
    assert prepare(source, first, ScriptedClient(right_times(lambda i: i))) == 0
    assert filtered(source, first / "grades.jsonl", "--min-pass-rate", "0.3") == 0
    assert written_pass_rates(source) == {"Compute 1+3": 0.375, "Compute 1+4": 0.5}
    settings = report_of(output)["settings"]
    assert settings["settings on record"]["answers per problem"] == 8
    assert "marsrl.reward.solver.target" not in settings, "it graded nothing"


def test_a_question_on_record_may_carry_the_instruction(tmp_path):
    question = f"{DAPO_INSTRUCTION.before}\n\nCompute 1+1\n\n{DAPO_INSTRUCTION.after}"
    source = write_lines(tmp_path / "a.jsonl", [{"question": question, "answer": "2"}])
    options = ("--strip-dapo", "--question-column", "question", "--answer-column", "answer")
    assert filtered(source, [{"question": question, "grades": [0, 1]}], *options) == 0
    assert written_pass_rates(source) == {"Compute 1+1": 0.5}


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ({"grades": [1]}, "names no problem"),
        ({"question": "Compute 1+1"}, "neither grades nor responses"),
        ({"question": "Compute 1+1", "responses": ["2"], "finish": ["over"]}, "expected 1 of: stop, length"),
        ({"question": "Compute 1+1", "grades": []}, "neither grades nor responses"),
        ({"question": "Compute 1+1", "responses": "\\boxed{2}"}, "neither grades nor responses"),
        ({"question": "Compute 1+1", "grades": ["x"]}, "can't be read"),
        ({"question": "Compute 1+1", "grades": [1], "ground_truth": "5"}, "graded against '5'"),
        ({"question": "Compute 9+9", "grades": [1]}, "no answers to any of the 4 problems"),
    ],
)
def test_an_unusable_record_is_refused(tmp_path, output, source, capsys, line, hint):
    assert filtered(source, [line]) == 2
    shown = capsys.readouterr().err
    assert hint in shown and "fix:" in shown
    assert f"{tmp_path}/answers.jsonl" in shown
    assert not output.exists()


def test_a_response_that_was_cut_off_is_no_answer(output, source):
    said = {"responses": ["We try \\boxed{2}", "\\boxed{2}"], "finish": ["length", "stop"]}
    assert filtered(source, [{"question": "Compute 1+1", **said}]) == 0
    assert written_pass_rates(source) == {"Compute 1+1": 0.5}
    assert report_of(output)["answers"]["by_finish_reason"] == {"length": 1, "stop": 1}


def test_a_question_in_two_chats_is_named_by_its_hash(tmp_path, capsys):
    rows = [verl_row("Compute 1+1", "2"), verl_row("Compute 1+1", "2")]
    rows[1]["prompt"].insert(0, {"role": "system", "content": "Be brief"})
    source = write_lines(tmp_path / "sums.jsonl", rows)
    assert filtered(source, [{"question": "Compute 1+1", "grades": [0, 1]}]) == 2
    assert "Name the problem by its hash" in capsys.readouterr().err
    assert filtered(source, [{"problem": problem_key("Compute 1+1"), "grades": [0, 1]}]) == 0


def test_words_without_effect_on_a_record_are_refused(source, capsys):
    word = "marsrl.roles.solver.temperature=0.5"
    assert filtered(source, [{"question": "Compute 1+1", "grades": [0, 1]}], word) == 2
    assert f"{word}: with --from-answers no model answers" in capsys.readouterr().err
