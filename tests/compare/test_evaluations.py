"""Two evaluations alone, from their folders."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from evaluation_tools import system
from scripted_engine import Reply, ScriptedEngine

from marsrl_verl.algos.marsrl.prompts import SOLVER, MathPrompts
from marsrl_verl.compare.application import main
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import RewardResult
from marsrl_verl.evaluation.suite import ALONE, evaluate
from marsrl_verl.reporting.run_folder import RunFolder

PROBLEMS = [
    Problem(f"v{i}", f"What is {i} + {i}? <b>", str(2 * i), "sums" if i < 30 else "aime/24", row=f"row{i}")
    for i in range(40)
]


def evaluated(folder, problems=PROBLEMS, wrong=(), samples=2, greedy=True) -> None:
    """The folder of an evaluation whose Solver is wrong on some problems, told by their questions."""

    def answer(request, k) -> Reply:
        truth = request.problem.ground_truth
        number = request.problem.question.split()[2]
        return Reply(rf"\boxed{{{'no' if int(number) in wrong else truth}}}")

    def grade(request, one) -> RewardResult:
        found = one.final_text[7:-1]
        return RewardResult(float(found == request.problem.ground_truth), {"answer": found})

    result = evaluate(
        ScriptedEngine(answer, scorer=grade),
        list(problems),
        system(MathPrompts(), correction_rounds=0),
        {SOLVER: Sampling(500, 9000)},
        tag=ALONE,
        step=0,
        samples_per_problem=samples,
        greedy=greedy,
    )
    RunFolder.create(folder).write_evaluation(result)


def test_a_line_for_each_problem_and_sample(tmp_path):
    long = Problem("long", "x" * 9000, "1", row="long")
    evaluated(tmp_path / "a", [*PROBLEMS[:2], long], wrong=(1,))
    lines = [json.loads(one) for one in (tmp_path / "a/evaluations/samples.jsonl").read_text().splitlines()]
    assert [(one["problem"], one["sample"], one["greedy"], one["correct"]) for one in lines] == [
        ("v0", 0, False, True), ("v0", 1, False, True), ("v1", 0, False, False), ("v1", 1, False, False),
        ("long", 0, False, None), ("long", 1, False, None),
        ("v0", 0, True, True), ("v1", 0, True, False), ("long", 0, True, None),
    ]  # fmt: skip
    assert (lines[2]["answer"], lines[2]["score"], lines[2]["calls"]) == ("no", 0.0, 1)
    assert (lines[2]["finish_reason"], lines[4]["finish_reason"]) == ("stop", "prompt_too_long")
    texts = {
        line["trajectory"]: line["response"]
        for name in ("eval_alone", "eval_alone_greedy")
        for line in map(json.loads, (tmp_path / f"a/rollouts/{name}.jsonl").read_text().splitlines())
    }
    assert texts[lines[2]["trajectory"]] == texts[lines[7]["trajectory"]] == r"\boxed{no}"


def test_they_are_compared_problem_by_problem_in_whatever_order(tmp_path, capsys):
    evaluated(tmp_path / "a", wrong=range(20))
    renamed = [replace(one, problem_id=f"v{k}") for k, one in enumerate(reversed(PROBLEMS))]
    evaluated(tmp_path / "b", renamed, wrong=range(15, 22))
    assert main([str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "report.md").read_text() == text
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "50.0 %" in rows["right answers"] and "82.5 %" in rows["right answers"]
    assert "+32.5 [+" in rows["right answers"] and "+32.5 [+" in rows["right answers, greedy"]
    assert "| +0.0 [" in rows["aime/24"] and "+43.3 [+" in rows["sums"]
    assert "| +0.0 [+0.0, +0.0] |" in rows["calls"]
    assert rows["Solver accuracy"].endswith("| better |")
    assert "b has more right answers on 15 problems, fewer on 2, as many on 23" in text
    assert r"| v0 | What is 0 + 0? \<b\> | 0 % | 100 % |" in text


def test_one_sided_passes_and_agreement(tmp_path, capsys):
    evaluated(tmp_path / "a", samples=0)
    evaluated(tmp_path / "b")
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    text = capsys.readouterr().out
    assert "| right answers, greedy | 40 |" in text and "| right answers |" not in text
    assert "Nowhere: every problem has the same share" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["a", "b"],
            "1 of 40 problems only in a, the first: 'What is 0 + 0? <b>'; 0 of 39 problems only in b",
        ),
        (["a", "empty"], "empty holds no finished evaluation alone: evaluations/samples.jsonl"),
        (["a"], "expected two folders"),
        (["a", "a", "a"], "expected two folders"),
        (["a", "b", "--seeds", "4", "--dry-run"], "--seeds, --dry-run: a is a folder"),
    ],
)
def test_what_can_not_be_compared(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    evaluated(tmp_path / "a")
    evaluated(tmp_path / "b", PROBLEMS[1:])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        main(words)
    assert message in " ".join(capsys.readouterr().err.split())


def test_tokens_that_an_endpoint_does_not_tell_are_not_compared(tmp_path, capsys):
    evaluated(tmp_path / "a")
    evaluated(tmp_path / "b")
    samples = tmp_path / "b/evaluations/samples.jsonl"
    lines = [{**json.loads(one), "tokens": 0} for one in samples.read_text().splitlines()]
    samples.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "| calls | 40 |" in shown and "| tokens" not in shown
    assert main([str(tmp_path / "a"), str(tmp_path / "a"), "--output", str(tmp_path / "both")]) == 0
    assert "| tokens | 40 |" in (tmp_path / "both/report.md").read_text()
    assert "<table>" in (tmp_path / "both/report.html").read_text()
