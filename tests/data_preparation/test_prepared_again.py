"""Preparations that were interrupted, that a grader fails, or that are asked for again."""

from __future__ import annotations

import pytest
from preparing import (
    NEVER,
    ScriptedClient,
    prepare,
    questions,
    read_lines,
    read_parquet,
    report_of,
    right_once,
    right_times,
    sums,
    write_lines,
)

from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.rewards.base import RoleReward
from marsrl_verl.rewards.grade_pool import GradeFailure
from marsrl_verl.rewards.running import RewardRunner


def test_an_interrupted_preparation_goes_on_where_it_stopped(tmp_path, output, source, capsys):
    whole = tmp_path / "whole"
    script = right_times(lambda i: i % 9)
    assert prepare(source, whole, ScriptedClient(script)) == 0
    first = ScriptedClient(script, stop_after=4, log=output / "grades.jsonl")
    assert prepare(source, output, first) == 130
    assert "goes on" in capsys.readouterr().err
    assert not (output / "train.parquet").exists()
    recorded = len(read_lines(output / "grades.jsonl")) - 1
    assert recorded == 4
    second = ScriptedClient(script)
    assert prepare(source, output, second) == 0
    assert sorted(first.requests + second.requests) == sorted(f"Compute 1+{i}" for i in range(1, 10))
    assert questions(output / "train.parquet") == questions(whole / "train.parquet")
    assert report_of(output)["answers"] == report_of(whole)["answers"]


class FailsOn(RoleReward):
    """Raises on some answers, accepts the others."""

    def __init__(self, fails) -> None:
        self.fails = fails

    def score(self, request):
        if self.fails(request):
            raise GradeFailure("no such service")
        return RewardResult(1.0)


@pytest.fixture
def grader(monkeypatch):
    made = []

    def use(fails) -> list:
        def make(config):
            made.append(RewardRunner(FailsOn(fails)))
            return made[-1]

        monkeypatch.setattr("marsrl_verl.data_preparation.application.make_grader", make)
        return made

    return use


def test_a_grader_that_always_fails_ends_the_command_and_leaves_nothing_on_record(
    output, source, capsys, grader
):
    made = grader(lambda request: True)
    assert prepare(source, output, right_once(), "-k", "2") == 1
    assert len(made) == 2, "one looks at the problems, the threads share the other"
    err = capsys.readouterr().err
    assert "failed on every answer to the last 8 problems" in err
    assert "no such service" in err
    assert not (output / "train.parquet").exists()
    grader(lambda request: False)
    again = right_once()
    assert prepare(source, output, again, "-k", "2", "--max-pass-rate", "1") == 0
    assert len(again.requests) == 9


def test_few_problems_of_which_no_answer_is_graded_end_it_too(tmp_path, output, capsys, grader):
    grader(lambda request: True)
    few = write_lines(tmp_path / "few.jsonl", sums(2))
    assert prepare(few, output, right_once(), "-k", "2") == 1
    assert "last 2 problems" in capsys.readouterr().err


def test_an_answer_that_the_grader_fails_on_is_left_out_of_the_pass_rate(output, source, capsys, grader):
    grader(lambda request: request.trajectory_id.endswith("#0") or request.problem.ground_truth == "5")
    assert prepare(source, output, right_once(), "-k", "2", "--max-pass-rate", "1") == 0
    rows = [row["extra_info"] for row in read_parquet(output / "train.parquet")]
    assert [(row["pass_rate"], row["answers"]) for row in rows] == [(1.0, 1)] * 8
    assert report_of(output)["selection"]["ungraded"] == 1
    out = capsys.readouterr().out
    assert "failed on 10 answers; they are left out" in out
    assert "1 that grader or workflow failed on" in out


def test_what_is_answered_is_not_asked_again_for_another_filter(output, source):
    assert prepare(source, output, ScriptedClient(right_times(lambda i: i - 1))) == 0
    again = ("--replace", "--min-pass-rate", "0.5", "--max-pass-rate", "0.75")
    assert prepare(source, output, NEVER, *again) == 0
    assert questions(output / "train.parquet") == ["Compute 1+5", "Compute 1+6", "Compute 1+7"]


def test_more_problems_may_be_added_to_a_finished_preparation(tmp_path, output, source):
    more = write_lines(tmp_path / "more.jsonl", sums(11))
    assert prepare(source, output, right_once()) == 0
    client = right_once()
    assert prepare(source, output, client, "--input", str(more), "--replace") == 0
    assert sorted(client.requests) == ["Compute 1+10", "Compute 1+11"]
    assert report_of(output)["source"]["duplicates"] == 9


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (("--temperature", "0.3"), "marsrl.roles.solver.temperature was 1.0 and is 0.3"),
        (("--seed", "5"), "marsrl.run.seed was 1 and is 5"),
        (("-k", "4"), "answers per problem was 8 and is 4"),
        (("marsrl.reward.solver.kwargs.allow_last_number=true",), "marsrl.reward.solver.kwargs was {}"),
    ],
)
def test_a_changed_setting_is_refused_by_name(output, source, capsys, option, named):
    interrupted = ScriptedClient(right_times(lambda i: 1), 3, output / "grades.jsonl")
    assert prepare(source, output, interrupted) == 130
    assert prepare(source, output, NEVER, *option) == 2
    assert named in capsys.readouterr().err


def test_a_changed_answer_is_refused(output, source, capsys):
    assert prepare(source, output, right_once()) == 0
    rows = sums(9)
    rows[2]["reward_model"]["ground_truth"] = "77"
    assert prepare(write_lines(source, rows), output, NEVER, "--replace") == 2
    shown = capsys.readouterr().err
    assert "graded against '4'" in shown and "'77'" in shown and "row 2" in shown


def test_finished_files_are_not_replaced_unasked(output, source, capsys):
    assert prepare(source, output, right_once(), "--held-out", "2") == 0
    before = (output / "train.parquet").read_bytes()
    assert prepare(source, output, NEVER) == 2
    assert "--replace" in capsys.readouterr().err
    assert (output / "train.parquet").read_bytes() == before
    assert prepare(source, output, NEVER, "--replace") == 0
    assert not (output / "val.parquet").exists(), "a held-out part of an earlier selection would overlap"
