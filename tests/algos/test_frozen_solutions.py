"""Verifier and Corrector on solutions that the data bring along."""

from __future__ import annotations

import pytest
from evaluation_tools import evaluate_system
from marsrl_script import ScriptedEngine
from scripted_engine import Reply

from marsrl_verl.algos.marsrl.evaluation.frozen import (
    FROZEN_METRICS,
    FrozenSolution,
    frozen_observations,
    frozen_solutions,
)
from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.evaluation.role_metrics import EVALUATION_METRICS
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, MathPrompts
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.runs import calls_of, tokens_of
from marsrl_verl.evaluation.suite import EvaluationRecord, evaluate
from marsrl_verl.reporting.rollout_log import evaluation_lines

PROMPTS = MathPrompts()
SAMPLING = dict.fromkeys(ROLES, Sampling(max_new_tokens=64, max_prompt_tokens=4000))
PAIR = [
    {"solution": "It is \\boxed{1}", "correct": True, "report": "looks wrong"},
    {"solution": "It is \\boxed{2}", "correct": False, "report": "is wrong"},
    {"solution": "It is \\boxed{3}", "correct": False, "report": None},
]


def problem(number: int, **extra) -> Problem:
    return Problem(f"p{number}", f"Question {number}", "1", extra_info=extra)


def script(item, k):
    """The Solver is right. The Verifier calls everything wrong that it did not write itself, so to speak; the
    Corrector is right where it is told that something is wrong."""
    if item.role == SOLVER:
        return Reply("\\boxed{1}")
    if item.role == VERIFIER:
        frozen = item.inputs["solution"].startswith("It is")
        return Reply(f"**Correctness**: {'Wrong' if frozen else 'Correct'}")
    return Reply("\\boxed{1}" if "is wrong" in item.messages[-1]["content"] else "\\boxed{7}")


def test_they_are_asked_beside_the_run():
    problems = [problem(0, frozen_solutions=PAIR), problem(1)]
    runs = evaluate_system(ScriptedEngine(script), problems, PROMPTS, SAMPLING)
    first, second = runs.runs
    assert [call.request.role for call in first.calls] == [SOLVER, VERIFIER], "the system's own course"
    assert [call.request.stage for call in first.beside] == [
        f"frozen_{VERIFIER}_1", f"frozen_{CORRECTOR}_1", f"frozen_{VERIFIER}_2", f"frozen_{CORRECTOR}_2",
        f"frozen_{VERIFIER}_3",
    ]  # fmt: skip
    assert second.beside == [] and first.solved and second.solved
    assert (calls_of(first), tokens_of(first)) == (calls_of(second), tokens_of(second))
    found = {name: one.outcomes for name, one in frozen_observations(runs).items()}
    assert found == {
        "frozen_verifier_accuracy": (False, True, True),
        "frozen_verifier_recall": (True, True),
        "frozen_verifier_precision": (False, True, True),
        "frozen_verifier_false_alarm_rate": (True,),
        "frozen_corrector_fix_rate": (True,),
        "frozen_corrector_break_rate": (True,),
    }
    lines = list(evaluation_lines(0, runs, lambda request, one: {}))
    assert sum(line["stage"].startswith("frozen_") for line in lines) == 5, "they are on record"
    assert runs.generated_tokens == sum(line["tokens"] for line in lines)


def test_the_systems_figures_do_not_count_them():
    def figures(**extra):
        system = VerifyCorrect(PROMPTS, LoopRules(2))
        result = evaluate(
            ScriptedEngine(script), [problem(0, **extra), problem(1)], system, SAMPLING, tag="t", step=0
        )
        return result.record

    plain, frozen = figures(), figures(frozen_solutions=PAIR)
    assert {name: frozen.observations[name] for name in plain.observations} == plain.observations
    assert frozen.effort == plain.effort
    assert set(plain.metrics) == set(EVALUATION_METRICS), "nothing is shown that was not asked"
    assert list(frozen.metrics) == [*EVALUATION_METRICS, *FROZEN_METRICS]
    assert frozen.estimates["frozen_verifier_recall"].mean == 1.0
    assert frozen.estimates["frozen_verifier_false_alarm_rate_greedy"].mean == 1.0
    assert EvaluationRecord.from_json(frozen.to_json()) == frozen
    assert not any(info.follows_errors for info in FROZEN_METRICS.values())


def test_a_problem_that_is_too_long_asks_nothing():
    engine = ScriptedEngine(lambda item, k: Reply("", FinishReason.PROMPT_TOO_LONG))
    runs = evaluate_system(engine, [problem(0, frozen_solutions=PAIR)], PROMPTS, SAMPLING)
    assert [run.beside for run in runs.skipped] == [[]]


def test_a_null_field_is_a_field_that_is_not_there():
    assert frozen_solutions(problem(0, frozen_solutions=PAIR))[2] == FrozenSolution("It is \\boxed{3}", False)
    assert frozen_solutions(problem(0)) == frozen_solutions(problem(0, frozen_solutions=None)) == []


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("x", r"extra_info.frozen_solutions is a str, expected a list of mappings"),
        (["x"], "expected a list of mappings"),
        ([{"solution": "x"}], r"frozen_solutions\[0\] has no correct"),
        (
            [PAIR[0], {"correct": True, "text": "x"}],
            r"frozen_solutions\[1\] has text, expected solution, correct",
        ),
        ([{"solution": 3, "correct": True}], r"\[0\]\.solution is a int, expected a str"),
        ([{"solution": "x", "correct": 1}], r"\[0\]\.correct is a int, expected a bool"),
    ],
)
def test_what_is_written_otherwise_is_refused(written, said):
    with pytest.raises(ValueError, match=said):
        frozen_solutions(problem(0, frozen_solutions=written))
