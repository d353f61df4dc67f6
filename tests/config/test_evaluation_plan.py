"""What each evaluation of a run does, what it costs at most, and what the plan says of it."""

from __future__ import annotations

import pytest
from messages import assert_checks_refuse, refusals

from marsrl_verl.algos.marsrl.config import Config, Evaluation, InBetween
from marsrl_verl.algos.marsrl.prompts import MathPrompts
from marsrl_verl.config.run_cost import EvaluationCost, evaluation_at, evaluation_cost
from marsrl_verl.config.schema import MarsRLConfig
from marsrl_verl.rollout.external.config import PolicyConfig
from marsrl_verl.settings.declaration import RoleSampling

BETWEEN = "marsrl.evaluation.in_between"


def system(**changes) -> Evaluation:
    """The published loop on 100 problems, with changes."""
    loop = {"correction_rounds": 10, "accept_passes": 5, "reject_fails": 10, "fallback": "passes"}
    return Evaluation(**{"problems": 100, "samples_per_problem": 32, "greedy": False, **loop, **changes})


def settings(evaluation: Evaluation) -> MarsRLConfig:
    limits = {"solver": 100, "verifier": 10, "corrector": 1}
    roles = {role: RoleSampling(max_new_tokens=most) for role, most in limits.items()}
    return MarsRLConfig(algo=Config(), evaluation=evaluation, roles=roles)


@pytest.mark.parametrize("tag", ["before", "after", "alone"])
def test_before_and_after_are_as_they_are_set(tag):
    one = system(in_between=InBetween(problems=8, samples_per_problem=2, solver_only=True))
    assert evaluation_at(one, tag) == one


def test_those_in_between_have_settings_of_their_own():
    assert evaluation_at(system(), "step_20") == system()
    fewer = evaluation_at(system(in_between=InBetween(problems=8, samples_per_problem=2)), "step_20")
    assert (fewer.problems, fewer.samples_per_problem, fewer.correction_rounds) == (8, 2, 10)


def test_the_solver_alone_has_a_loop_that_the_evaluation_takes():
    alone = evaluation_at(system(in_between=InBetween(solver_only=True)), "step_20")
    defaults = {"accept_passes": 1, "reject_fails": None, "fallback": "last"}
    assert alone == system(correction_rounds=0, in_between=InBetween(solver_only=True), **defaults)


def test_costs_by_hand():
    one = settings(system(in_between=InBetween(problems=8, samples_per_problem=2, solver_only=True)))
    # 31 responses of a run: the Solver, ten rounds of two verdicts and a correction; 100 + 10 x 21 tokens.
    assert evaluation_cost(one, "after", 130, MathPrompts()) == EvaluationCost(100, 3200, 99_200, 992_000)
    assert evaluation_cost(one, "step_20", 130, MathPrompts()) == EvaluationCost(8, 16, 16, 1600)
    assert evaluation_cost(one, "after", 30, MathPrompts()).problems == 30
    # Greedily once more; a frozen policy's answers are not ours.
    plain = settings(Evaluation(correction_rounds=1))
    assert evaluation_cost(plain, "before", 10, MathPrompts()) == EvaluationCost(10, 20, 80, 20 * 121)
    once = settings(Evaluation(correction_rounds=1, samples_per_problem=0))
    assert evaluation_cost(once, "before", 10, MathPrompts()) == EvaluationCost(10, 10, 40, 10 * 121), (
        "greedily alone"
    )
    frozen = PolicyConfig(kind="endpoint")
    behind = plain.model_copy(update={"policies": {"big": frozen}})
    behind.roles["solver"].policy = "big"
    assert evaluation_cost(behind, "before", 10, MathPrompts()) == EvaluationCost(10, 20, 60, 20 * 21)


REFUSED = refusals(f"""
    no problem | {BETWEEN}.problems=0 | at least 1
    no run | {BETWEEN}.samples_per_problem=0 | at least 1
    no pass | marsrl.evaluation.greedy=false marsrl.evaluation.samples_per_problem=0
        | Nothing would be evaluated
    more than the others | {BETWEEN}.problems=30 marsrl.evaluation.problems=20 | {BETWEEN}.problems = 30
        | Set it to at most 20
""")


@pytest.mark.parametrize("case", REFUSED)
def test_refused(checked, case):
    assert_checks_refuse(checked, *REFUSED[case])


def test_the_plan_names_every_evaluation_and_its_cost(run):
    done = run(
        f"dry_run=true marsrl.evaluation.every=5 {BETWEEN}.problems=20 {BETWEEN}.solver_only=true",
        "marsrl.evaluation.before=false",
    )
    text = " ".join(done.out.split())
    assert "every 5 steps 20 40 40 1,920 after the last step 32 64 448 25,600" in text
    assert "before step 1" not in text
    alone = " ".join(run("dry_run=true", "trainer.val_only=true").out.split())
    assert "tokens alone 32 64 448 25,600" in alone and "after the last step" not in alone
    off = ("marsrl.evaluation.before=false", "marsrl.evaluation.after=false")
    assert "Evaluation: none" in run("dry_run=true", *off).text
