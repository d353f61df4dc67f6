from __future__ import annotations

import pytest

from marsrl_verl.core.types import SOLVER, FinishReason, Outcome, Problem, Sample, StageInput
from marsrl_verl.evaluation.estimators import Observations
from marsrl_verl.evaluation.solver_at_k import majority_at_k, pass_at_k
from marsrl_verl.evaluation.system import Call


def calls(problem: str, answers: list[str | None], truth: str) -> list[Call]:
    messages = ({"role": "user", "content": "q"},)
    item = StageInput(f"{problem}/solver/0", Problem(problem, "q", truth), "solver", 0, SOLVER, messages, 1)
    return [Call(item, sample(item, k, answer, truth)) for k, answer in enumerate(answers)]


def sample(item: StageInput, k: int, answer: str | None, truth: str) -> Sample:
    found = Sample(
        sample_id=f"{item.group_id}#{k}",
        group_id=item.group_id,
        prompt_ids=[1],
        response_ids=[2],
        rollout_log_probs=[0.0],
        text=str(answer),
        final_text=str(answer),
        finish_reason=FinishReason.STOP,
    )
    found.outcome = Outcome(float(answer == truth), answer)
    return found


@pytest.mark.parametrize(
    ("answers", "solved"),
    [
        (["7", "5", "7"], True),
        (["5", "7", "5"], False),
        (["7", "5"], True),  # equally frequent: the earliest
        (["5", "7"], False),
        ([None, None, "7"], True),  # no answer is no vote
        ([None, None], False),
    ],
)
def test_the_most_frequent_answer_counts(answers, solved):
    found = majority_at_k(calls("p", answers, "7"))
    assert (found.outcomes, found.problems) == ((solved,), ("p",))


def test_problems_are_counted_once_each():
    found = majority_at_k([*calls("a", ["1", "1"], "1"), *calls("b", ["2", "3"], "3")])
    assert found == Observations((True, False), ("a", "b"))


def test_one_correct_answer_passes():
    answers = Observations((False, True, False, False), ("a", "a", "b", "b"))
    assert pass_at_k(answers) == Observations((True, False), ("a", "b"))
