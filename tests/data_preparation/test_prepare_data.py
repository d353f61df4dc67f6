"""The whole command, with a scripted client in place of vLLM."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from preparing import (
    NEVER,
    ScriptedClient,
    pass_rates,
    prepare,
    questions,
    read_lines,
    report_of,
    right_once,
    right_times,
    sums,
    verl_row,
    write_lines,
)

from marsrl_verl.algos.marsrl.method import MarsRL
from marsrl_verl.config.application import main as train_main
from marsrl_verl.core.trajectory import FinishReason, RolloutOutput
from marsrl_verl.data.files import read_report
from marsrl_verl.data.problems import problem_key
from marsrl_verl.data_preparation.application import main
from marsrl_verl.demo.assets import model_path
from marsrl_verl.rollout.single_call import SingleCall


@dataclass
class Twice:
    """A workflow: the first answer is asked to be said again, in the same chat."""

    settings: Any

    @classmethod
    def from_settings(cls, settings):
        return cls(settings)

    async def run(self, request, context):
        assert self.settings.algo.name.endswith("Tooled") and request.n == 1
        chat = context.conversation(0, request.role, request.messages)
        await chat.sample()
        chat.append([{"role": "user", "content": "Compute 1+2"}])
        await chat.sample()
        one = chat.trajectory()
        (one.reward,) = await context.score([one])
        return RolloutOutput(request.group_id, [one])


class Broken:
    """A workflow that fails on the problems `BROKEN`."""

    async def run(self, request, context):
        if request.problem.question in BROKEN:
            raise OSError("no tool here")
        return await SingleCall().run(request, context)


BROKEN: set[str] = set()


class Breaking(MarsRL):
    program = Broken

    @classmethod
    def stages(cls, config):
        return tuple(replace(one, rollout=cls.program) for one in super().stages(config))


class Tooled(Breaking):
    program = Twice


def test_problems_that_the_model_always_solves_are_left_out(output, source, capsys):
    client = ScriptedClient(right_times(lambda i: i - 1))
    assert prepare(source, output, client) == 0
    rates = {f"Compute 1+{right + 1}": right / 8 for right in range(8)}
    assert list(pass_rates(output / "train.parquet").items()) == list(rates.items())
    report = report_of(output)
    assert (report["selection"]["kept"], report["selection"]["too_easy"]) == (8, 1)
    bars = report["answers"]["histogram"]
    assert [(bar["right"], bar["problems"]) for bar in bars] == [(right, 1) for right in range(9)]
    assert report["answers"]["by_finish_reason"] == {"stop": 72}
    assert report["settings"]["answers per problem"] == 8
    assert report["settings"]["actor_rollout_ref.model.path"] == model_path()
    assert report["written"] == {"train": 8, "val": 0}
    assert {"torch", "transformers"} <= set(report["versions"])
    assert "8 kept, 1 too easy" in capsys.readouterr().out


def test_the_model_is_asked_with_trainings_settings(output, source):
    client = right_once()
    options = "--temperature 0.5 --max-tokens 40 --seed 7 -k 2 marsrl.roles.solver.top_k=9"
    assert prepare(source, output, client, *options.split()) == 0
    config, settings = client.arguments
    assert (settings.temperature, settings.max_new_tokens, settings.top_k) == (0.5, 40, 9)
    assert settings.seed == 7
    assert config.actor_rollout_ref.model.path == model_path()
    assert sorted(client.requests) == sorted(f"Compute 1+{i}" for i in range(1, 10))


def test_a_methods_own_program_answers_as_in_its_evaluation(output, source):
    """One answer after the other, in a chat that grows, with the limits of all roles that it may ask."""

    def script(question, k):
        assert k == 0, "a request of each answer"
        i = int(question.partition("+")[2].partition("<")[0])
        return f"so \\boxed{{{1 + i if again in question and i != 4 else 99}}}"

    again = "<|user|>Compute 1+2"
    client = ScriptedClient(script)
    method = f"marsrl.algo.name={__name__}:Tooled"
    assert prepare(source, output, client, method, "-k", "2", "--max-pass-rate", "1") == 0
    first = [question for question in client.requests if again not in question]
    second = [question for question in client.requests if again in question]
    assert sorted(first) == sorted(2 * [f"Compute 1+{i}" for i in range(1, 10)]) and len(second) == 18
    assert all(question.startswith("Compute 1+") and "boxed{99}" in question for question in second)
    rates = pass_rates(output / "train.parquet")
    assert rates == {f"Compute 1+{i}": float(i != 4) for i in range(1, 10)}
    config, settings = client.arguments
    roles = config.marsrl.roles.values()
    longest = max(one.max_prompt_tokens + one.max_new_tokens for one in roles)
    assert settings.max_prompt_tokens + settings.max_new_tokens == longest


def test_answers_of_a_program_depend_on_the_methods_settings(output, source, capsys):
    method = (f"marsrl.algo.name={__name__}:Breaking", "-k", "1")
    client = ScriptedClient(right_times(lambda i: 1), 3, output / "grades.jsonl")
    assert prepare(source, output, client, *method) == 130
    assert prepare(source, output, NEVER, *method, "marsrl.algo.group_size=4") == 2
    assert "marsrl.algo was" in capsys.readouterr().err


@pytest.mark.parametrize("broken", [1, 9])
def test_a_program_that_fails_says_nothing_about_a_problem(output, source, capsys, monkeypatch, broken):
    """One that fails on eight in a row ends the command, and nothing is recorded of them."""
    monkeypatch.setattr(f"{__name__}.BROKEN", {f"Compute 1+{i}" for i in range(1, 1 + broken)})
    words = ("-k", "2", "--max-pass-rate", "1")
    method = f"marsrl.algo.name={__name__}:Breaking"
    status = prepare(source, output, right_once(), method, *words)
    shown = capsys.readouterr()
    if broken == 9:
        assert status == 1 and len(read_lines(output / "grades.jsonl")) == 1
        assert "the workflow failed on every answer to the last 8 problems" in shown.err
        assert "OSError: no tool here" in shown.err
    else:
        assert (status, report_of(output)["selection"]["ungraded"]) == (0, 1)
        assert len(questions(output / "train.parquet")) == 8


def test_a_frozen_role_of_a_program_is_refused(output, source, capsys):
    frozen = (f"marsrl.algo.name={__name__}:Tooled", "policies=solver_endpoint", "algo=marsrl_vc")
    endpoint = "marsrl.policies.solver.endpoint"
    words = (f"{endpoint}.base_urls=[http://host/v1]", f"{endpoint}.model=big")
    assert prepare(source, output, NEVER, *frozen, *words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "marsrl.roles.solver.policy = solver" in said and "--from-answers" in said


def test_the_files_are_accepted_by_training_as_they_are(tmp_path, output, source, capsys, monkeypatch):
    client = ScriptedClient(right_times(lambda i: i % 3))
    assert prepare(source, output, client, "-k", "3", "--held-out", "4") == 0
    for split in ("train", "val"):
        assert read_report(output / f"{split}.parquet", split).faults == {}
    train, val = questions(output / "train.parquet"), questions(output / "val.parquet")
    assert len(val) == 4 and not set(train) & set(val)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    files = [f"data.{split}_files={output / split}.parquet" for split in ("train", "val")]
    words = ["model=tiny", "cluster=cpu", "data=parquet", *files, "data.train_batch_size=4", "dry_run=true"]
    status = train_main(words, lambda config: 1)
    shown = capsys.readouterr()
    assert (status, shown.err) == (0, "")
    assert "train.parquet" in shown.out and "val.parquet" in shown.out


def test_verls_own_dataset_reads_the_files(tmp_path, output, source):
    datasets = pytest.importorskip("datasets")
    assert prepare(source, output, right_once()) == 0
    path = str(output / "train.parquet")
    loaded = datasets.load_dataset("parquet", data_files=path, cache_dir=str(tmp_path / "cache"))["train"]
    row = loaded[0]
    assert row["prompt"] == [{"role": "user", "content": "Compute 1+1"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "2"}
    assert row["extra_info"]["problem"] == problem_key("Compute 1+1")


# --- answers that are no answers ------------------------------------------------------------------------


def test_cut_off_answers_and_long_prompts_are_told_apart(tmp_path, output):
    long = verl_row("Compute " + "1+" * 40 + "1", "41")
    rows = [verl_row("Compute 1+1", "2"), long, verl_row("Compute 1+3", "4")]
    source = write_lines(tmp_path / "a.jsonl", rows)

    def script(question: str, k: int) -> str | FinishReason:
        return FinishReason.LENGTH if question.endswith("3") else "\\boxed{2}" if k else "\\boxed{7}"

    client = ScriptedClient(script)
    assert prepare(source, output, client, "--min-pass-rate", "0.1") == 0
    assert len(client.requests) == 2, "a prompt over the Solver's limit is never asked in training"
    report = report_of(output)
    assert report["answers"]["by_finish_reason"] == {"length": 8, "stop": 8}
    assert [report["selection"][one] for one in ("kept", "too_hard", "prompt_too_long")] == [1, 1, 1]


def test_responses_are_kept_on_request(output, source):
    assert prepare(source, output, right_once(), "--keep-responses", "-k", "2") == 0
    _, *lines = read_lines(output / "grades.jsonl")  # in the order in which they were graded
    assert len(lines) == 9
    for line in lines:
        assert line["responses"] == [f"so \\boxed{{{line['ground_truth']}}}", "so \\boxed{99}"]


def test_trainings_math_grader_judges_in_its_own_process(tmp_path, output):
    rows = [verl_row("Compute 1+1", "1/2"), verl_row("Compute 1+2", "1/3")]
    source = write_lines(tmp_path / "a.jsonl", rows)
    client = ScriptedClient(lambda question, k: "\\boxed{2/4}")
    words = ["--input", str(source), "--output", str(output), "-k", "2", "model=tiny", "cluster=cpu"]
    assert main(words, client) == 0
    assert questions(output / "train.parquet") == ["Compute 1+2"]
    assert report_of(output)["settings"]["marsrl.reward.solver.target"].endswith("MathVerifyReward")


# --- bad rows -------------------------------------------------------------------------------------------


def test_nobody_is_asked_what_the_reward_can_not_grade(tmp_path, output, capsys):
    source = write_lines(tmp_path / "a.jsonl", [verl_row("Who?", "Ada"), verl_row("Why?", "x", ability="qa")])
    words = ["--input", str(source), "--output", str(output), "model=tiny", "cluster=cpu"]
    assert main([*words, "reward=by_ability"], NEVER) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "marsrl.reward.solver can't grade some problems" in shown
    assert "no ability and the data source 'sums'" in shown and "a.jsonl row 0 (line 1)" in shown


def test_bad_rows_stop_the_command_before_anything_is_asked(tmp_path, output, capsys):
    rows = [verl_row("Compute 1+1", "2"), verl_row("Compute 1+2", None), verl_row("Compute 1+3", "")]
    source = write_lines(tmp_path / "a.jsonl", rows)
    assert prepare(source, output, NEVER) == 2
    shown = capsys.readouterr().err
    assert "2 of 3 rows" in shown and "row 1 (line 2)" in shown and "row 2 (line 3)" in shown
    assert "--bad-rows skip" in shown
    assert not output.exists()


def test_bad_rows_are_skipped_on_request_and_stay_in_the_report(tmp_path, output, capsys):
    rows = [verl_row("Compute 1+1", "2"), verl_row("Compute 1+2", None), *sums(2)]
    source = write_lines(tmp_path / "a.jsonl", rows)
    assert prepare(source, output, right_once(), "--bad-rows", "skip") == 0
    assert "row 1 (line 2)" in capsys.readouterr().out
    (fault,) = report_of(output)["source"]["bad_rows"].values()
    assert (fault["count"], fault["places"]) == (1, [f"{source} row 1 (line 2)"])
    assert questions(output / "train.parquet") == ["Compute 1+1", "Compute 1+2"]


def test_an_instruction_that_no_row_has_is_refused(output, source, capsys):
    assert prepare(source, output, NEVER, "--strip-dapo") == 2
    assert "'Compute 1+1'" in capsys.readouterr().err


def test_rows_without_the_instruction_are_told(tmp_path, output, capsys):
    rows = [verl_row("Please: Compute 1+1", "2"), verl_row("Compute 1+2", "3")]
    source = write_lines(tmp_path / "a.jsonl", rows)
    assert prepare(source, output, right_once(), "--strip-before", "Please:") == 0
    assert "1 rows lack the instruction" in capsys.readouterr().out
    assert questions(output / "train.parquet") == ["Compute 1+1", "Compute 1+2"]
    source_counts = report_of(output)["source"]
    assert (source_counts["instruction_taken_off"], source_counts["instruction_missing"]) == (1, 1)


def test_nothing_kept_writes_nothing(output, source, capsys):
    assert prepare(source, output, ScriptedClient(right_times(lambda i: 8))) == 2
    assert "No problem is kept" in capsys.readouterr().err
    assert not (output / "train.parquet").exists()


# --- the command line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "No start model is named"),
        (("model=tinny",), "model=tiny"),
        (("model=tiny", "data=tiny"), "--input"),
        (("model=tiny", "name=x"), "--output"),
        (("model=tiny", "other.jsonl"), "--input may be given several times"),
        (("model=tiny", "--graders", "0"), "at least 1"),
        (("model=tiny", "--held-out", "-1"), "at least 0"),
        (("model=tiny", "--min-pass-rate", "2"), "--min-pass-rate"),
        (("model=tiny", "--tempperature", "1"), "--help"),
        (("model=tiny", "--strip-dapo", "--strip-after", "x"), "--strip-before"),
        (("--from-answers", "a.jsonl", "--model", "x"), "--model"),
        (("--from-answers", "a.jsonl", "-k", "8"), "--answers-per-problem"),
        (("model=tiny", "cluster=cpu", "--temperature", "0"), "temperature"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(output, source, capsys, words, hint):
    status = main(["--input", str(source), "--output", str(output), *words], NEVER)
    shown = capsys.readouterr()
    assert status == 2
    assert hint in shown.err and "fix:" in shown.err
    assert "Traceback" not in shown.err
    assert not output.exists()


def test_a_model_without_a_preset_has_the_published_settings(tmp_path, output, source):
    folder = Path(shutil.copytree(model_path(), tmp_path / "it's a model"))
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 10**6}))
    client = right_once()
    words = ["--input", str(source), "--output", str(output), "--model", str(folder)]
    assert main([*words, "cluster=cpu"], client) == 0
    config, settings = client.arguments
    assert config.actor_rollout_ref.model.path == str(folder)
    assert config.marsrl.prompts.target == "marsrl_verl.algos.marsrl.prompts:MathPrompts"
    limits = (settings.max_prompt_tokens, settings.max_new_tokens, settings.segment_tokens)
    assert (settings.temperature, limits) == (0.85, (32768, 65536, None))
