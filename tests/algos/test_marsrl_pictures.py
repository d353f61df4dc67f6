"""What the report shows of the system, counted by hand; what fewer rounds would have answered."""

from __future__ import annotations

import pytest
from evaluation_tools import evaluate_system, system
from marsrl_script import ScriptedEngine, SkillModel
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.loop_rules import Fallback, LoopRules, RunEnd, choose_answer
from marsrl_verl.algos.marsrl.evaluation.system_pictures import calls_within
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER, MathPrompts
from marsrl_verl.core.request import Problem, RolloutRequest, Sampling
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.evaluation.runs import Runs

SAMPLING = {role: Sampling(600, 9000) for role in (SOLVER, VERIFIER, CORRECTOR)}
PROBLEMS = [Problem(f"p{i}", f"What is {i}?", str(i)) for i in range(30)]


def runs_of(rounds: int, **rules) -> Runs:
    engine = ScriptedEngine(SkillModel(seed=4, solver=0.4))
    return evaluate_system(
        engine, PROBLEMS, MathPrompts(), SAMPLING, correction_rounds=rounds, samples_per_problem=4, **rules
    )


@pytest.mark.parametrize("fallback", list(Fallback))
@pytest.mark.parametrize("passes", [1, 2])
def test_fewer_rounds_are_those_of_a_shorter_loop(fallback, passes):
    rules = {"fallback": fallback, "accept_passes": passes}
    long, limits = runs_of(4, **rules), LoopRules(4, **rules)
    for rounds in range(passes, 4):
        for run, short in zip(long.runs, runs_of(rounds, **rules).runs, strict=True):
            calls = calls_within(run, limits, rounds)
            assert [call.request.stage for call in calls] == [call.request.stage for call in short.calls]
            accepted = run.end is RunEnd.ACCEPTED and len(calls) == len(run.calls)
            assert accepted == (short.end is RunEnd.ACCEPTED)
            answer = choose_answer(calls, fallback, accepted=accepted)
            assert (answer is not None and is_correct(answer.value)) == short.solved


def scripted(item: RolloutRequest, k: int) -> Reply:
    """a: right and passed. b: wrong, found, fixed, passed. c: right, blamed, broken, passed."""
    name, stage = item.problem.problem_id, item.stage
    if item.role == VERIFIER:
        wrong = name in "bc" and stage == "verifier_1"
        return Reply(f"**Correctness**: {'Wrong' if wrong else 'Correct'}")
    right = name in "ac" if stage == "solver" else name == "b"
    return Reply(f"It is \\boxed{{{42 if right else 41}}}.")


def pictured(repeats: int):
    problems = [Problem(name, "q", "42") for name in "abc"]
    rules = {"correction_rounds": 2}
    runs = evaluate_system(
        ScriptedEngine(scripted), problems, MathPrompts(), SAMPLING, samples_per_problem=repeats, **rules
    )
    return {one.name: one for one in system(MathPrompts(), **rules).pictures(runs, 0.95)}


def test_the_pictures_count_what_happened():
    found = pictured(repeats=1)
    assert list(found) == ["accuracy_and_cost", "accuracy_by_round", "verdicts", "corrections", "calls"]
    right, accepted = found["accuracy_by_round"].series
    assert [round(3 * one.value.mean) for one in right.points] == [2, 2, 2]
    assert [round(3 * one.value.mean) for one in accepted.points] == [0, 1, 3]
    # Right ones: a, b's correction pass, c's is blamed. Wrong ones: b is found, c's correction passes.
    assert found["verdicts"].counts == [[2, 1, 0], [1, 1, 0]]
    assert found["corrections"].categories == ["1"]
    assert list(found["corrections"].parts.values()) == [[1], [1], [0], [0]]
    assert found["calls"].parts == {"right answer": [0, 1, 0, 1], "wrong or none": [0, 0, 0, 1]}
    assert found["calls"].note == "Calls for each right answer: 5.0; of the Solver alone: 1.5."
    [system_line] = found[
        "accuracy_and_cost"
    ].series  # the Solver's single answer is the system without rounds
    assert [one.label for one in system_line.points] == ["0", "1", "2"]


def test_cost_is_that_of_the_calls_that_were_made():
    cost = pictured(repeats=2)["accuracy_and_cost"]
    lines = {one.label: [(point.x, point.value.mean) for point in one.points] for one in cost.series}
    assert list(lines) == [
        "System, by rounds",
        "Solver alone, most frequent of k",
        "Solver alone, any of k (oracle)",
        "the one of k that the Verifier passes",
    ]
    answer, correct, wrong = (
        len(text) for text in ("It is \\boxed{42}.", "**Correctness**: Correct", "**Correctness**: Wrong")
    )
    verified = answer + (correct + 2 * wrong) / 3
    xs = [x for x, _ in lines["System, by rounds"]]
    assert xs == pytest.approx([answer, verified + 2 / 3 * answer, verified + 2 / 3 * (answer + correct)])
    assert lines["Solver alone, most frequent of k"] == [
        (answer, pytest.approx(2 / 3)),
        (2 * answer, pytest.approx(2 / 3)),
    ]
    assert lines["the one of k that the Verifier passes"] == [
        (pytest.approx(2 * verified), pytest.approx(2 / 3))
    ]
