"""k1 plans with k2 solutions: figures by enumeration, the runs of an evaluation, and what is rejected."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_tools import single_call

from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import PLAN, Config
from marsrl_verl.algos.rema.single_turn.evaluation import PlanAndSolve
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts
from marsrl_verl.algos.rema.single_turn.reranking import MISSING, Solution, flat, hierarchical, pass_at
from marsrl_verl.core.request import Problem, Sampling
from marsrl_verl.core.trajectory import RewardResult, RolloutOutput
from marsrl_verl.evaluation.at_k import pass_at_k
from marsrl_verl.evaluation.runs import run_evaluation
from marsrl_verl.evaluation.suite import evaluate

RIGHT, WRONG = Solution(True, None), Solution(False, None)


@given(
    st.integers(1, 3).flatmap(
        lambda size: st.lists(st.lists(st.booleans(), min_size=size, max_size=size), min_size=1, max_size=4)
    ),
    st.data(),
)
def test_pass_at_is_the_mean_over_all_draws(right, data):
    drawn, each = data.draw(st.integers(1, len(right))), data.draw(st.integers(1, len(right[0])))
    plans = [[Solution(one, None) for one in some] for some in right]
    outcomes = [
        any(any(some) for some in chosen)
        for subset in itertools.combinations(right, drawn)
        for chosen in itertools.product(*(list(itertools.combinations(one, each)) for one in subset))
    ]
    assert pass_at(plans, drawn, each) == pytest.approx(fmean(outcomes))


def test_pass_at_by_hand():
    plans = [[RIGHT, WRONG], [WRONG, WRONG], [RIGHT, RIGHT]]
    assert pass_at(plans, 1, 1) == pytest.approx(0.5)  # three of six
    # Chances to fail with one of each: 1/2, 1, 0. Pairs of plans: 1/2, 0, 0.
    assert pass_at(plans, 2, 1) == pytest.approx(1 - 0.5 / 3)
    assert pass_at(plans, 3, 2) == 1.0 and pass_at(plans, 1, 2) == pytest.approx(2 / 3)
    alone = [[RIGHT], [WRONG], [WRONG], [WRONG]]
    assert [pass_at(alone, k, 1) for k in (1, 2, 3, 4)] == pytest.approx(
        [pass_at_k(4, 1, k) for k in (1, 2, 3, 4)]
    )


def scores(*plans):
    """(right, score) of each solution of each plan."""
    return [[Solution(right, score) for right, score in one] for one in plans]


@pytest.mark.parametrize(
    ("plans", "of_all", "of_the_best_plan"),
    [
        # The highest score of all is wrong, and stands in a plan whose mean is low.
        (scores([(False, 9.0), (False, -9.0)], [(True, 5.0), (False, 4.0)]), 0.0, 1.0),
        (scores([(True, 9.0), (False, -9.0)], [(False, 5.0), (True, 4.0)]), 1.0, 0.0),
        # Equal scores, equal plans: each is as likely.
        (scores([(True, 1.0), (False, 1.0)], [(False, 1.0), (False, 1.0)]), 0.25, 0.25),
        (scores([(True, 2.0), (False, 0.0)], [(False, 2.0), (True, 0.0)]), 0.5, 0.5),
        # A plan that nobody can follow, and solutions that were cut off.
        ([[MISSING, MISSING], *scores([(True, -7.0), (False, -8.0)])], 1.0, 1.0),
        ([[MISSING, Solution(True, -1.0)], *scores([(False, -0.5), (False, -9.0)])], 0.0, 0.0),
        ([[MISSING, Solution(True, -1.0)], *scores([(False, -2.0), (False, -9.0)])], 1.0, 1.0),
        ([[MISSING, MISSING]], 0.0, 0.0),
    ],
)  # fmt: skip
def test_what_a_reward_model_chooses(plans, of_all, of_the_best_plan):
    assert (flat(plans), hierarchical(plans)) == (of_all, of_the_best_plan)


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(-2, 2)), min_size=1, max_size=1), min_size=1))
def test_with_one_solution_of_a_plan_both_choose_the_same(plans):
    known = scores(*plans)
    assert flat(known) == pytest.approx(hierarchical(known))


# --- runs of an evaluation ------------------------------------------------------------------------

PROBLEM = Problem("p", "1 + 1 = ?", "2", row="r")
SAMPLING = {role: Sampling(100, 1000) for role in (META_THINKING, REASONING)}


class Answers:
    """Implements `RolloutEngine`: plans by run, and of each plan (answer, score) in turn."""

    def __init__(self, plans: list[list[tuple[str, float | None]] | None]) -> None:
        self.plans, self.pending, self.asked = plans, [], []

    def submit(self, requests, sampling) -> None:
        self.pending += requests
        self.asked += requests

    def outputs(self) -> list[RolloutOutput]:
        pending, self.pending = self.pending, []
        return [RolloutOutput(one.group_id, [self._answer(one)]) for one in pending]

    def _answer(self, item):
        run = int(item.group_id.split("/")[2])
        plan = self.plans[run]
        if item.stage == PLAN:
            text, reward = ("" if plan is None else f"plan {run}"), RewardResult(0.0, {"leak": False})
        else:
            number = int(item.stage.partition("_")[2] or 1) - 1
            text, score = plan[number]
            more = {} if score is None else {"reward_model": score}
            reward = RewardResult(float(text == "2"), {"answer": text, **more})
        one = single_call(f"{item.group_id}#0", reward=0.0, role=item.role, text=text, final_text=text)
        one.reward = reward
        return one


def found(plans, solutions=2, **more):
    engine = Answers(plans)
    evaluation = PlanAndSolve(Config(), MathPlanPrompts(), solutions=solutions, **more)
    runs = run_evaluation(engine, evaluation, [PROBLEM], SAMPLING, repeats=len(plans), tag="t")
    return engine, evaluation, runs, {k: v.mean for k, v in evaluation.observations(runs).items()}


def test_each_plan_has_its_solutions():
    engine, evaluation, runs, means = found([[("2", 0.1), ("3", 0.9)], [("2", 0.5), ("2", 0.4)], None])
    asked = [(one.group_id.split("/")[2], one.stage) for one in engine.asked]
    assert sorted(asked) == [("0", "plan"), ("0", "solution"), ("0", "solution_2"), ("1", "plan"),
                             ("1", "solution"), ("1", "solution_2"), ("2", "plan")]  # fmt: skip
    prompts = {one.stage: one.messages for one in engine.asked if one.group_id.split("/")[2] == "1"}
    assert prompts["solution"] == prompts["solution_2"] and evaluation.max_calls[REASONING] == 2
    assert means["accuracy"] == pytest.approx(3 / 6), "a plan that nobody can follow has two wrong solutions"
    assert means["majority_accuracy"] == 1.0
    assert means["flat_rerank_accuracy"] == 0.0  # 3 has the highest score of all
    assert means["hierarchical_rerank_accuracy"] == 0.0  # 0.5 and 0.45 are the plans' means
    assert (means["pass_at_1x2"], means["pass_at_3x2"]) == (pytest.approx(2 / 3), 1.0)
    assert [one.answer and one.answer.final_text for one in runs.runs] == ["3", "2", None]
    assert evaluation.metrics["pass_at_3x2"].label == "Pass@3x2"


def test_without_a_reward_model_there_is_no_reranking():
    _, _, runs, means = found([[("3", None), ("2", None)], [("3", None), ("2", None)]])
    assert "flat_rerank_accuracy" not in means and means["majority_accuracy"] == 0.0
    assert [one.answer.final_text for one in runs.runs] == ["3", "3"], "the first one is the run's"


def test_one_solution_of_each_plan_has_pass_at_k_of_the_literature():
    _, evaluation, _, means = found([[("2", 1.0)], [("3", 2.0)]], solutions=1)
    assert not [name for name in means if "pass_at" in name]
    assert means["flat_rerank_accuracy"] == 0.0 and "hierarchical_rerank_accuracy" not in means
    record = evaluate(
        Answers([[("2", 1.0)], [("3", 2.0)]]),
        [PROBLEM],
        evaluation,
        SAMPLING,
        tag="alone",
        step=0,
        samples_per_problem=2,
        greedy=False,
    ).record
    assert record.derived["solution_pass_at_2"].mean == 1.0
    assert record.headline == ("accuracy", "majority_accuracy", "flat_rerank_accuracy")


def test_the_greedy_pass_has_one_solution():
    _, evaluation, _, _ = found([[("2", None), ("2", None)]])
    assert evaluation.greedy().solutions == 1 and evaluation.greedy().max_calls[REASONING] == 1
