"""What a Solver with k tries at a problem reaches: with any of its answers, or with the most frequent one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.evaluation.estimators import (
    Estimate,
    MetricInfo,
    Observations,
    mean_estimate,
    share_estimate,
)
from marsrl_verl.evaluation.runs import (
    Call,
    Evaluation,
    Program,
    Run,
    Runs,
    answer_reward,
    calls_of,
    final_answer,
    is_usable,
    tokens_of,
)

if TYPE_CHECKING:
    from marsrl_verl.algos.marsrl.prompts import RolePrompts

SOLVER_ACCURACY = "solver_accuracy"
"""Its mean over all of a problem's answers is the avg@k of the literature."""
SOLVER_METRICS = {SOLVER_ACCURACY: MetricInfo("Solver accuracy", "share of Solver answers that are correct")}

PASS_AT = "solver_pass_at_"
"""With the number of tries."""
MAJORITY_AT_K = "solver_majority_at_k"


class SolverAlone(Evaluation):
    """One answer of the Solver to each problem, as often as asked: avg@k, pass@k and the majority's accuracy.

    Args:
        prompts: words the Solver's prompt.
    """

    roles = (SOLVER,)

    def __init__(self, prompts: RolePrompts) -> None:
        self.prompts = prompts

    def program(self, run: Run) -> Program:
        """A single call."""
        trajectory = yield run.request(SOLVER, SOLVER, self.prompts.solver(run.problem))
        run.solver_reward = run.final_reward = answer_reward(trajectory)
        run.answer = trajectory if is_usable(trajectory) else None
        run.end = trajectory.finish.value

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """Of `SOLVER_METRICS`."""
        return {SOLVER_ACCURACY: Observations.of((run.solved, run.problem.problem_id) for run in runs.runs)}

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Calls and tokens of a run."""
        found = {}
        for name, measure in (("calls", calls_of), ("tokens", tokens_of)):
            pairs = [(float(measure(run)), run.problem.problem_id) for run in runs.runs]
            found[name] = mean_estimate(pairs, confidence)
        return found

    def description(self) -> str:
        """What is asked."""
        return "The Solver alone: its final answer is graded."


def pass_at_k(answers: int, correct: int, k: int) -> float:
    """The chance that k answers, drawn from so many without replacement, hold a correct one:
    1 - C(answers - correct, k) / C(answers, k), unbiased for any k up to their number (Chen et al. 2021,
    arXiv 2107.03374, eq. 1).

    Raises:
        ValueError: on numbers that no problem can have; the message names them.
    """
    if not 1 <= k <= answers or not 0 <= correct <= answers:
        raise ValueError(
            f"pass@{k} of {answers} answers, {correct} of them correct: expected 1 <= k <= answers and "
            "0 <= correct <= answers"
        )
    return 1 - math.comb(answers - correct, k) / math.comb(answers, k)


def pass_at_k_estimates(answers: Observations, confidence: float = 0.95) -> dict[str, Estimate]:
    """`solver_pass_at_<k>` for k = 2, 4, 8, … and for all answers of a problem: the mean over problems.

    Args:
        answers: whether each of a problem's answers is correct; the problem with the fewest limits k.
    """
    right: dict[str, list[bool]] = {}
    for outcome, problem in zip(answers.outcomes, answers.problems, strict=True):
        right.setdefault(problem, []).append(outcome)
    most = min((len(outcomes) for outcomes in right.values()), default=0)
    found = {}
    for k in sorted({2**power for power in range(1, most.bit_length())} | {most}):
        if 1 < k <= most:
            values = {name: pass_at_k(len(one), sum(one), k) for name, one in right.items()}
            found[f"{PASS_AT}{k}"] = share_estimate(values, answers.n, confidence)
    return found


def majority_at_k(calls: Iterable[Call]) -> Observations:
    """Whether the most frequent of a problem's final answers is correct, one observation a problem.

    Of equally frequent answers the earliest is taken. Responses without a readable answer do not vote; a
    problem without any vote is not solved. Answers are compared as the reward extracted them.
    """
    found: dict[str, list[Call]] = {}
    for call in calls:
        if call.request.role == SOLVER:
            found.setdefault(call.request.problem.problem_id, []).append(call)
    return Observations.of((_majority_is_correct(tries), problem) for problem, tries in found.items())


def _majority_is_correct(tries: list[Call]) -> bool:
    answers = [final_answer(call.trajectory) for call in tries]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return False
    winner = max(votes, key=lambda answer: votes[answer])  # a Counter keeps the order of first votes
    return is_correct(answer_reward(tries[answers.index(winner)].trajectory))
