"""What an evaluation's runs say of other ways to spend its calls."""

from __future__ import annotations

import pytest
from evaluation_tools import trajectory

from marsrl_verl.algos.marsrl.evaluation.best_of import best_of_observations, system_gains
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.trajectory import FinishReason
from marsrl_verl.evaluation.estimators import NOT_OBSERVED, Observations
from marsrl_verl.evaluation.runs import Call, Run, Runs

VERDICTS = {"+": Verdict.CORRECT, "-": Verdict.WRONG, "?": Verdict.INVALID}


def run_of(problem: str, repeat: int, answer: str, verdicts: str, tokens: int = 2, source: str = "") -> Run:
    """A run whose Solver answers (7 is right) and whose Verifier says this: `?` is asked again at once."""
    run = Run(Problem(problem, "q", "7", data_source=source), repeat)

    def call(stage: str, role: str, **told) -> None:
        asked = RolloutRequest(f"{problem}/{repeat}/{stage}", run.problem, stage, role, (), 1)
        run.calls.append(Call(asked, trajectory(f"{asked.group_id}#0", role=role, ids=[2] * tokens, **told)))

    finish = FinishReason.STOP if answer else FinishReason.LENGTH
    call(SOLVER, SOLVER, reward=float(answer == "7"), answer=answer or None, finish=finish)
    number, again = 1, ""
    for said in verdicts:
        call(f"{VERIFIER}_{number}{again}", VERIFIER, verdict=VERDICTS[said])
        again = "_again" if said == "?" and not again else ""
        if said == "-":
            call(f"{CORRECTOR}_{number}", CORRECTOR, reward=1.0, answer="7")
        number += not again
    return run


def test_the_solution_that_the_first_verdict_passes_is_chosen():
    runs = [
        run_of("a", 0, "7", "+"),
        run_of("a", 1, "5", "-+"),  # passed after a correction only: not this solution
        run_of("a", 2, "", ""),  # nothing to judge
        run_of("a", 3, "7", "?+"),  # asked again in the first round
        run_of("b", 0, "5", "+"),  # a Verifier that errs
        run_of("b", 1, "7", "??-"),
        run_of("b", 2, "7", "-"),
        run_of("b", 3, "7", "-"),
    ]
    found = best_of_observations(Runs("t", runs))
    # a: two of four pass, both right; in one of six draws of two none passes, and none of these is right.
    # b: one passes, wrong; it is in three of six draws, and the others are right.
    assert found["verifier_best_of_2"] == Observations(
        (pytest.approx(5 / 6), pytest.approx(1 / 2)), ("a", "b")
    )
    assert found["verifier_best_of_4"] == Observations((1.0, 0.0), ("a", "b"))


def test_the_solver_alone_answers_as_often_as_the_system_calls():
    runs = [run_of("a", k, "7" if k < 2 else "5", "-+" if k else "+") for k in range(4)]  # 2 + 3 x 4 calls
    runs += [run_of("b", k, "7", "+") for k in range(4)]  # 2 each
    found = best_of_observations(Runs("t", runs))
    # 22 calls in 8 runs: 2.75, three answers. Of three answers to a two or one are right, two of four draws.
    for what in ("calls", "tokens"):
        assert found[f"solver_equal_{what}_majority"] == Observations((pytest.approx(1 / 2), 1.0), ("a", "b"))
        assert found[f"solver_equal_{what}_pass"] == Observations((1.0, 1.0), ("a", "b"))
    system = Observations.of((True, one.problem.problem_id) for one in runs)
    gain = system_gains({**found, "system_accuracy": system}, 0.95)["system_equal_calls_gain"]
    assert gain.mean == pytest.approx(1 / 4) and gain.n == 2
    assert system_gains({"system_accuracy": system, "solver_accuracy": NOT_OBSERVED}, 0.95) == {}


def test_figures_of_more_answers_than_there_are_are_absent():
    runs = [run_of("a", k, "7", "--" + "+") for k in range(4)]  # 6 calls
    assert set(best_of_observations(Runs("t", runs))) == {"verifier_best_of_2", "verifier_best_of_4"}
    assert best_of_observations(Runs("t", runs[:1])) == {}
    assert best_of_observations(Runs("t", [])) == {}
    external = [run_of("a", k, "7", "+", tokens=0) for k in range(4)]
    names = best_of_observations(Runs("t", external))
    assert "solver_equal_calls_majority" in names and "solver_equal_tokens_majority" not in names


def test_equal_cost_is_that_of_the_data_source():
    """A source whose systems call more often than it has answers is not in the figure, on either side."""
    runs = [run_of("a", k, "7", "+", source="easy") for k in range(4)]  # two calls each
    runs += [run_of("b", k, "5", "--" + "+", source="hard") for k in range(4)]  # six
    found = best_of_observations(Runs("t", runs))
    assert found["solver_equal_calls_majority"] == Observations((1.0,), ("a",))
    system = Observations.of((True, one.problem.problem_id) for one in runs)
    gain = system_gains({**found, "system_accuracy": system}, 0.95)["system_equal_calls_gain"]
    assert gain.mean == 0.0 and gain.n == 1
