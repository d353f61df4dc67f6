"""The example of a report: which run is chosen, and how it is told."""

import re
from dataclasses import replace

import pytest
from evaluation_tools import system
from markdown_it import MarkdownIt
from marsrl_script import ScriptedEngine
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.loop import Shown, shown_by
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER, MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.runs import Runs
from marsrl_verl.evaluation.suite import evaluate
from marsrl_verl.reporting.example import example_markdown, example_text, pick_example

PROBLEMS = [Problem(f"p{i}", f"What is {i}?", str(i)) for i in range(40)]
SAMPLING = {role: Sampling(600, 9000) for role in (SOLVER, VERIFIER, CORRECTOR)}


def evaluate_script(*wanted, **rules):
    """One sampled evaluation in which problem p<i> goes the i-th way: (solver, verdicts, corrections)."""

    def script(item, k):
        solver, verdicts, fixes = wanted[int(item.problem.problem_id[1:])]
        number = int(item.stage[-1]) - 1 if "_" in item.stage else 0
        if item.role == VERIFIER:
            return Reply(f"Checked.\n\n**Correctness**: {verdicts[number]}")
        if item.role == SOLVER and solver is None:
            return Reply("and so on", FinishReason.LENGTH)
        right = solver if item.role == SOLVER else fixes[number]
        return Reply(f"\\boxed{{{item.problem.ground_truth if right else 'no'}}}")

    result = evaluate(
        ScriptedEngine(script),
        PROBLEMS[: len(wanted)],
        system(MathPrompts(), **rules),
        SAMPLING,
        tag="after",
        step=9,
        greedy=False,
    )
    return result.sampled


def picked(runs):
    return pick_example(system(MathPrompts()), runs)


UNFINISHED = (None, [], [])
ACCEPTED = (True, ["Correct"], [])
FOUND = (False, ["Wrong", "Wrong"], [False, False])
REPAIRED = (False, ["Wrong", "Wrong"], [False, True])
REPAIRED_AND_ACCEPTED = (False, ["Wrong", "Correct"], [True])
BROKEN = (True, ["Wrong", "Correct"], [False])


@pytest.mark.parametrize(
    ("ways", "chosen", "rank"),
    [
        ([ACCEPTED, REPAIRED, REPAIRED_AND_ACCEPTED, FOUND], 2, Shown.REPAIRED_AND_ACCEPTED),
        ([ACCEPTED, FOUND, REPAIRED], 2, Shown.REPAIRED),
        ([BROKEN, ACCEPTED, FOUND, UNFINISHED], 2, Shown.FOUND),
        ([BROKEN, UNFINISHED, ACCEPTED], 2, Shown.ACCEPTED),
        ([BROKEN, UNFINISHED], 1, Shown.UNFINISHED),
        ([BROKEN], 0, Shown.OTHER),
    ],
)
def test_the_most_telling_example_is_chosen(ways, chosen, rank):
    example = picked(evaluate_script(*ways))
    assert (example.run.problem.problem_id, example.summary.rank) == (f"p{chosen}", rank)


def test_examples_of_a_longer_loop():
    """Acceptance takes two verdicts; where it fails, the Solver's solution may be the answer."""
    rules = {"correction_rounds": 3, "accept_passes": 2, "fallback": "passes"}
    accepted = (True, ["Correct", "Correct"], [])
    repaired = (False, ["Wrong", "Correct", "Correct"], [True])
    passed_once = (False, ["Wrong", "Correct", "Wrong"], [True, False])
    not_chosen = (False, ["Wrong", "Wrong", "Wrong"], [False, True])
    failed = (False, ["Wrong", "Wrong", "Wrong"], [False, False])
    ways = [accepted, repaired, passed_once, not_chosen, failed]
    assert [shown_by(run) for run in evaluate_script(*ways, **rules).runs] == [
        Shown.ACCEPTED,
        Shown.REPAIRED_AND_ACCEPTED,
        Shown.REPAIRED,
        Shown.OTHER,
        Shown.FOUND,
    ]
    text = example_text(picked(evaluate_script(not_chosen, **rules)))
    assert text.endswith("Result: incorrect (rounds used; answer: Solver)")
    assert example_text(picked(evaluate_script(repaired, **rules))).endswith("Result: correct (accepted)")


def test_no_runs_no_example():
    assert picked(Runs("t", [])) is None


def test_an_example_is_told_call_by_call():
    example = picked(evaluate_script(REPAIRED_AND_ACCEPTED))
    text = example_text(example)
    parts = [
        "the Verifier accepts the repair.",
        "reference answer: 0",
        "What is 0?",
        "1. Solver: answer `no`, incorrect",
        "2. Verifier (round 1): verdict Wrong, rightly",
        "3. Corrector (round 1): answer `0`, correct",
        "4. Verifier (round 2): verdict Correct, rightly",
        "Result: correct (accepted)",
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def test_example_markdown_is_safe_and_short():
    example = picked(evaluate_script(FOUND))
    example.run.calls[0].trajectory.text = "```\n" + "x" * 500
    text = example_markdown(example, limit=100)
    assert "````text\n```\n" in text
    assert "[… 404 characters left out …]" in text


HOSTILE = "\x1b]0;own\x07\x1b[2J`</code><img src=x onerror=alert(1)>\u202e"


def test_a_response_can_neither_steer_the_terminal_nor_write_into_the_report():
    example = picked(evaluate_script(REPAIRED))
    for call in example.run.calls:
        call.trajectory.text = f"{HOSTILE}\n```\n{HOSTILE}"
        scored = call.trajectory.scored
        if scored.info.get("answer") is not None:
            call.trajectory.reward = replace(scored, info={"answer": HOSTILE})
    question = f"{HOSTILE}\n```\n# Head"
    example.run.problem = replace(example.run.problem, ground_truth=HOSTILE, question=question)
    for shown in (example_text(example), example_markdown(example)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    page = MarkdownIt("commonmark", {"html": True}).render(example_markdown(example))
    assert set(re.findall(r"<(\w+)", page)) == {"p", "strong", "pre", "code"}
