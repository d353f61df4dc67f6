"""GRPO on the scheduler with scripted answers: what is asked, what is trained, and how it is evaluated."""

from __future__ import annotations

import numpy as np
import pytest
from marsrl_script import ScriptedEngine
from scheduler_tools import ShortPrompts, build, problems
from scripted_engine import Reply

from marsrl_verl.algos.grpo.method import GRPO, GRPOConfig
from marsrl_verl.core.credit.advantages import group_advantages
from marsrl_verl.core.method import trained_rows
from marsrl_verl.core.request import Sampling
from marsrl_verl.core.rows import Rows
from marsrl_verl.core.scheduler import Scheduler
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.evaluation.workflow import method_evaluation
from marsrl_verl.settings.evaluation import EvaluationConfig

RIGHT = {"p0": (0, 2), "p1": ()}
"""The right responses of each problem."""


def grpo(**settings) -> GRPO:
    return build(GRPO, ShortPrompts(), **{"group_size": 4, **settings})


def step(method: GRPO):
    """What a step of two problems brings."""

    def reply(item, k):
        right = k in RIGHT[item.problem.problem_id]
        return Reply(f"\\boxed{{{item.problem.ground_truth if right else 'wrong'}}}")

    scheduler, engine = Scheduler(method, "sequential"), ScriptedEngine(reply, seed=1)
    scheduler.start_step(1, problems(2))
    while requests := scheduler.next_round():
        scheduler.absorb(engine.generate(requests, {"solver": Sampling(50, 50)}))
    return scheduler.finish_step(last=True)


@pytest.mark.parametrize("normalize", [True, False])
def test_responses_are_compared_inside_their_group(normalize):
    method = grpo(normalize_std=normalize)
    result = step(method)
    assert [group.group_id for group in result.completed] == ["p0/solver/0", "p1/solver/0"]
    assert [group.group_id for group in result.trained] == ["p0/solver/0"], "the other's rewards are equal"
    rows = Rows.of(result.trained, trained_rows(method, result.trained, 1))
    found = method.credit.advantages(rows)
    by_row = [set(found[rows.slice(row)].tolist()) for row in range(len(rows))]
    expected = np.array(group_advantages([1, 0, 1, 0], normalize_std=normalize), np.float32).tolist()
    assert by_row == [{value} for value in expected], "the same for all tokens of a response"


def test_a_problem_whose_prompt_is_too_long_is_not_asked():
    problem = problems(1)[0]
    assert grpo(limits={"solver": 0}).first_requests(problem, 1) == []
    (request,) = grpo(limits={"solver": 1}).first_requests(problem, 1)
    assert (request.role, request.n, request.created_step) == ("solver", 4, 1)


def test_its_evaluation_asks_its_one_role():
    found = method_evaluation(GRPO, GRPOConfig(), EvaluationConfig(), ShortPrompts())
    assert isinstance(found, SingleRole) and found.roles == ("solver",)
    assert found.max_calls == {"solver": 1}
