"""What the checks tell of the data: too long prompts, repeated problems, held-out ones that are trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from messages import assert_checks_refuse
from small_files import sums, write_problems

from marsrl_verl.config.light_tokenizer import open_tokenizer
from marsrl_verl.data.files import PromptLengths, read_report
from marsrl_verl.settings.issues import ConfigError

LIMIT = "marsrl.roles.solver.max_prompt_tokens"
LONG = " ".join(["word"] * 2000)


@pytest.fixture
def warnings_of(checked, tmp_path):
    """The warnings of a run on these training and held-out problems."""

    def call(train, val=None, **changes) -> list[str]:
        files = {
            "data.train_files": write_problems(tmp_path / "train.jsonl", train),
            "data.val_files": write_problems(tmp_path / "val.jsonl", sums(900, 4) if val is None else val),
            "data.train_batch_size": 4,
        }
        return checked({**files, **changes}).warnings

    return call


def test_clean_data_is_warned_of_in_no_way(warnings_of):
    assert warnings_of(sums(0, 40)) == []


def test_data_of_which_nothing_can_be_asked_is_refused(checked, tmp_path):
    long = write_problems(tmp_path / "long.jsonl", [(f"{LONG} {i}", "2") for i in range(40)])
    good = write_problems(tmp_path / "good.jsonl", sums(0, 40))
    size = {"data.train_batch_size": 4}
    hint = "All 40 problems of data.train_files have prompts over"
    assert_checks_refuse(checked, {"data.train_files": long, "data.val_files": good, **size}, LIMIT, hint)
    hint = "All 40 problems of data.val_files have prompts over"
    assert_checks_refuse(checked, {"data.train_files": good, "data.val_files": long, **size}, LIMIT, hint)
    never = {"marsrl.evaluation.before": False, "marsrl.evaluation.after": False}
    assert checked({"data.train_files": good, "data.val_files": long, **size, **never}).warnings


def test_some_that_are_too_long_are_counted(warnings_of):
    problems = [*sums(0, 30), *[(f"{LONG} {i}", "2") for i in range(10)]]
    (warning,) = warnings_of(problems)
    assert warning.startswith("10 of 40 problems of data.train_files have prompts over")
    assert "data.filter_overlong_prompts=true" in warning
    (warning,) = warnings_of(problems, **{"data.filter_overlong_prompts": True})
    assert warning.endswith("data.filter_overlong_prompts leaves them out.")
    (warning,) = warnings_of(sums(0, 40), val=[*sums(50, 3), (LONG, "1")])
    assert "1 of 4 problems of data.val_files" in warning
    assert "not evaluated" in warning


def test_problems_that_are_filtered_do_not_fill_a_step(checked, tmp_path):
    problems = [*sums(0, 30), *[(f"{LONG} {i}", "2") for i in range(10)]]
    files = {
        "data.train_files": write_problems(tmp_path / "train.jsonl", problems),
        "data.val_files": write_problems(tmp_path / "val.jsonl", sums(900, 4)),
        "data.train_batch_size": 31,
    }
    checked(files)
    hint = "The training data has 30 problems"
    changes = {**files, "data.filter_overlong_prompts": True}
    assert_checks_refuse(checked, changes, "data.train_batch_size", hint)


def test_a_part_of_the_data_is_drawn_before_it_is_filtered(run, tmp_path):
    problems = [*sums(0, 30), *[(f"{LONG} {i}", "2") for i in range(10)]]
    words = [
        f"data.train_files={write_problems(tmp_path / 't.jsonl', problems)}",
        "data.train_max_samples=18",
    ]
    words += [f"data.val_files={write_problems(tmp_path / 'v.jsonl', sums(900, 4))}"]
    assert "an epoch is 4 steps" in run(*words, "data.train_batch_size=4", "dry_run=true").text
    words.append("data.filter_overlong_prompts=true")
    assert "an epoch is 2 steps" in run(*words, "data.train_batch_size=4", "dry_run=true").text
    refused = run(*words, "data.train_batch_size=9")
    assert refused.status == 2
    assert "The training data has 8 problems" in " ".join(refused.err.split())


def test_the_plan_counts_them(run, tmp_path):
    problems = [*sums(0, 30), *[(f"{LONG} {i}", "2") for i in range(10)]]
    files = [f"data.train_files={write_problems(tmp_path / 't.jsonl', problems)}"]
    files += [
        f"data.val_files={write_problems(tmp_path / 'v.jsonl', sums(900, 4))}",
        "data.train_batch_size=4",
    ]
    shown = run(*files, "dry_run=true").out
    assert "40 problems, 10 too long to ask" in shown
    assert "an epoch is 10 steps" in shown
    filtered = run(*files, "dry_run=true", "data.filter_overlong_prompts=true").out
    assert "an epoch is 7 steps; 2 problems" in filtered
    started = run(*files)
    assert started.launched is not None
    assert "warning: 10 of 40 problems of data.train_files" in started.out


def test_a_bound_is_enough_for_short_prompts_and_the_limit_is_exact(model):
    counter = open_tokenizer(model)
    chat = [{"role": "user", "content": "a bc def"}]
    exact = counter.chat(chat)
    assert exact == 5, "a word each, and two of the template"
    assert counter.chat(chat, enough=1000) > exact, "characters"
    assert counter.chat(chat, enough=10) == exact
    assert counter.chat([{"role": "user", "content": "ä bc def"}], enough=1000) == exact


def test_what_an_evaluation_alone_would_not_train_is_of_no_concern(warnings_of):
    assert warnings_of(sums(0, 40), sums(0, 40), **{"trainer.val_only": True}) == []
    assert len(warnings_of(sums(0, 40), sums(0, 40))) == 1


def test_held_out_problems_that_are_trained(warnings_of):
    (warning,) = warnings_of(sums(0, 40), val=[*sums(50, 3), ("7  +  1", "8")])
    assert warning.startswith("1 of 4 held-out problems are trained too")
    assert "val.jsonl row 3 (line 4)" in warning
    assert "train.jsonl row 7 (line 8)" in warning


def test_repeated_problems_and_two_answers(warnings_of):
    repeated, contradicted = warnings_of([*sums(0, 10), ("3 + 1", "4.0"), ("4 + 1", "6"), ("3 + 1", "4")])
    assert repeated.startswith("2 of 13 rows of data.train_files repeat a problem")
    assert contradicted.startswith(
        "1 of 13 rows of data.train_files give a problem of an earlier row another"
    )
    assert "train.jsonl row 4 (line 5) and" in contradicted
    assert "train.jsonl row 11 (line 12)" in contradicted


def test_every_fault_of_a_file_is_named_with_its_rows(checked, tmp_path):
    path = tmp_path / "rows.jsonl"
    good = {
        "prompt": [{"role": "user", "content": "1"}],
        "data_source": "t",
        "reward_model": {"ground_truth": "1"},
    }
    rows = [good, {**good, "reward_model": None}, {"prompt": good["prompt"], "data_source": "t"}, good]
    path.write_text("\n".join([json.dumps(row) for row in rows] + ["{"]))
    with pytest.raises(ConfigError) as caught:
        checked({"data.train_files": str(path), "data.train_batch_size": 1})
    shown = " ".join(str(caught.value).split())
    for part in (
        "o answer in reward_model.ground_truth (1 of 5 rows: 1 (line 2), counted from 0)",
        "column reward_model (1 of 5 rows: 2 (line 3), counted from 0)",
    ):
        assert part in shown
    assert "he line is no JSON (1 of 5 rows: 4 (line 5), counted from 0)" in shown


def test_an_answer_may_be_a_dictionary_for_a_reward_that_reads_it(warnings_of):
    assert warnings_of([(f"{i}", {"inputs": [i]}) for i in range(8)]) == []


def test_held_out_rows_that_the_method_can_not_evaluate_are_refused_at_the_start(checked, run, tmp_path):
    """MarsRL's frozen solutions; another method does not read them."""
    lines = Path(write_problems(tmp_path / "val.jsonl", sums(0, 12))).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for at, row in enumerate(rows[1:]):
        row["extra_info"] = {"frozen_solutions": [{"solution": f"\\boxed{{{at}}}", f"right_{at}": True}]}
    (tmp_path / "val.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {
        "data.train_files": write_problems(tmp_path / "train.jsonl", sums(100, 8)),
        "data.val_files": str(tmp_path / "val.jsonl"),
        "data.train_batch_size": 4,
    }
    with pytest.raises(ConfigError) as caught:
        checked(files)
    shown = " ".join(str(caught.value).split())
    assert (
        "frozen_solutions[0] has right_0, expected solution, correct, report (1 of 12 rows: 1 (line 2)"
        in shown
    )
    words = [f"{key}={value}" for key, value in files.items()]
    assert run("algo=grpo", "model=tiny", "cluster=cpu", *words, "dry_run=true").status == 0


def test_prompts_are_measured_with_what_the_row_brings_along(tmp_path):
    """Of a pair that is judged the answers stand in `extra_info`."""
    row = {
        "prompt": [{"role": "user", "content": "Which?"}],
        "data_source": "pairs",
        "reward_model": {"ground_truth": "A"},
        "extra_info": {"answer_a": "one", "answer_b": "two"},
    }
    seen: list[dict] = []
    path = tmp_path / "pairs.jsonl"
    other = {**row, "extra_info": {"answer_a": "one", "answer_b": "a long one"}}
    path.write_text("\n".join(map(json.dumps, (row, other))))

    def measure(problem):
        seen.append(problem.extra_info)
        return {"planner": 1, "judge": len(problem.extra_info["answer_b"])}

    def check(problem):
        if "long" in problem.extra_info["answer_b"]:
            raise ValueError("that is long")

    limits = {"planner": 5, "judge": 5}
    report = read_report(path, "train", lengths=PromptLengths(measure, limits))
    assert seen == [row["extra_info"], other["extra_info"]] and report.faults == {}
    assert (report.too_long, report.longest_prompts) == (1, {"judge": 10}), "the second one of this question"
    assert list(read_report(path, "val", check=check).faults) == ["that is long"]


def row(question: str) -> dict:
    chat = [{"role": "user", "content": question}]
    return {"prompt": chat, "reward_model": {"ground_truth": "2"}, "data_source": "test"}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_half_of_a_surrogate_pair_is_named_before_anything_starts(tmp_path, name):
    path, rows = tmp_path / name, [row("1 + 1 = ? 🙂"), row("1 + 1 = ?\ud800")]
    path.write_text(json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows)))
    report = read_report(path, "train")
    ((what, fault),) = report.faults.items()
    assert "half of a surrogate pair" in what
    assert fault.places[0].startswith("1")
    assert report.longest_question == "1 + 1 = ? 🙂"


def test_a_line_ends_at_a_line_feed_and_nowhere_else(tmp_path):
    path = tmp_path / "rows.jsonl"
    questions = ["one\u2028line", "two\x85", "\x00three"]
    path.write_text("\n".join(json.dumps(row(one), ensure_ascii=False) for one in questions))
    assert read_report(path, "train").rows == 3
