"""What a Solver with k tries at a problem reaches: with any of its answers, or with the most frequent one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from marsrl_verl.core.types import SOLVER, is_correct
from marsrl_verl.evaluation.estimators import Observations
from marsrl_verl.evaluation.judgement import answer_reward
from marsrl_verl.evaluation.system import Call

PASS_AT_K = "solver_pass_at_k"
MAJORITY_AT_K = "solver_majority_at_k"


def pass_at_k(answers: Observations) -> Observations:
    """From the observations of single answers, k of a problem: whether any of them is correct, one
    observation a problem."""
    solved: dict[str, bool] = {}
    for correct, problem in zip(answers.outcomes, answers.problems, strict=True):
        solved[problem] = solved.get(problem, False) or correct
    return Observations.of((correct, problem) for problem, correct in solved.items())


def majority_at_k(calls: Iterable[Call]) -> Observations:
    """Whether the most frequent of a problem's final answers is correct, one observation a problem.

    Of equally frequent answers the earliest is taken. Responses without a readable answer do not vote; a
    problem without any vote is not solved. Answers are compared as the reward extracted them.
    """
    samples: dict[str, list[Call]] = {}
    for call in calls:
        if call.input.role == SOLVER:
            samples.setdefault(call.input.problem.problem_id, []).append(call)
    return Observations.of((_majority_is_correct(tries), problem) for problem, tries in samples.items())


def _majority_is_correct(tries: list[Call]) -> bool:
    answers = [call.sample.outcome.answer if call.sample.outcome else None for call in tries]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return False
    winner = max(votes, key=lambda answer: votes[answer])  # a Counter keeps the order of first votes
    return is_correct(answer_reward(tries[answers.index(winner)].sample))
