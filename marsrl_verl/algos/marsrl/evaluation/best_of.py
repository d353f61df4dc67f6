"""Other ways to spend the system's calls, from the runs that an evaluation has anyway: the one of several
solutions of the Solver that the Verifier passes, and the Solver alone at the system's cost.

Each run of a problem has one solution of the Solver and the Verifier's verdict of the first round on it.
Bounds of the choice are the Solver's pass@k (an oracle chooses) and its accuracy (a random choice).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from marsrl_verl.algos.marsrl.evaluation.loop_rules import AGAIN, verdict_of
from marsrl_verl.algos.marsrl.prompts import SOLVER, VERIFIER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.evaluation.at_k import best_of_k, pass_at_k, reported_k
from marsrl_verl.evaluation.estimators import Estimate, MetricInfo, Observations, difference
from marsrl_verl.evaluation.runs import Run, Runs, answer_reward, calls_of, tokens_of
from marsrl_verl.evaluation.single_role import expected_majority, tries_of

EQUAL_METRICS = {
    f"solver_equal_{what}_majority": MetricInfo(
        f"Solver alone at equal {what}",
        f"accuracy of the most frequent of as many Solver answers as cost a run's {what}",
        follows_errors=True,  # as many as the system's rounds take
    )
    for what in ("calls", "tokens")
}


def best_of_observations(runs: Runs) -> dict[str, Observations]:
    """Returns `verifier_best_of_<k>` for each `reported_k`, and `solver_equal_calls_majority`,
    `solver_equal_calls_pass` and the two at equal tokens if there are as many answers; one number, an
    expectation over draws, for each problem. Empty if problems have one run.

    Equal cost is a number of answers for each data source, since the costs of benchmarks differ; a source
    with fewer answers than that is left out.
    """
    solutions: dict[str, list[tuple[float, bool]]] = {}
    sources: dict[str, list[Run]] = {}
    for run in runs.runs:
        solved = is_correct(answer_reward(run.calls[0].trajectory))
        solutions.setdefault(run.problem.problem_id, []).append((_passed_first(run), solved))
        sources.setdefault(run.problem.data_source, []).append(run)
    most = min(map(len, solutions.values()), default=0)
    found = {}
    for k in reported_k(most):
        chosen = ((best_of_k(one, k), name) for name, one in solutions.items())
        found[f"{VERIFIER}_best_of_{k}"] = Observations.of(chosen)
    equal: dict[str, list[tuple[float, str]]] = {}
    for some in sources.values():
        for name, observed in _at_equal_cost(some, solutions).items():
            equal.setdefault(name, []).extend(observed.pairs())
    return found | {name: Observations.of(pairs) for name, pairs in equal.items()}


def _at_equal_cost(
    runs: list[Run], solutions: Mapping[str, list[tuple[float, bool]]]
) -> dict[str, Observations]:
    """Returns the observations of the Solver alone at the cost of these runs, of one data source."""
    tries = tries_of(SOLVER, (call for run in runs for call in run.calls))
    right = {name: [solved for _, solved in solutions[name]] for name in tries}
    least, found = min(map(len, tries.values()), default=0), {}
    for what, k in _equal_answers(runs).items():
        if least > 1 and k <= least:
            passed = ((pass_at_k(len(one), sum(one), k), name) for name, one in right.items())
            found[f"{SOLVER}_equal_{what}_majority"] = expected_majority(tries, k)
            found[f"{SOLVER}_equal_{what}_pass"] = Observations.of(passed)
    return found


def system_gains(observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
    """Returns `system_equal_calls_gain` and `system_equal_tokens_gain`: the system's accuracy less that of
    the Solver's majority at the same cost, paired by problem."""
    pairs = {
        what: (observations.get(f"{SOLVER}_equal_{what}_majority"), observations.get("system_accuracy"))
        for what in ("calls", "tokens")
    }
    return {
        f"system_equal_{what}_gain": difference(alone, system.among(frozenset(alone.problems)), confidence)
        for what, (alone, system) in pairs.items()
        if alone is not None and system is not None
    }


def _passed_first(run: Run) -> float:
    """Returns the share of Correct verdicts on the Solver's solution in the first round: 1 or 0, also if the
    repeated verdict can't be read, or there was nothing to judge."""
    first = (f"{VERIFIER}_1", f"{VERIFIER}_1{AGAIN}")
    verdicts = [verdict_of(call.trajectory) for call in run.calls if call.request.stage in first]
    return float(bool(verdicts) and verdicts[-1] is Verdict.CORRECT)


def _equal_answers(runs: list[Run]) -> dict[str, int]:
    """Returns the number of the Solver's answers that cost at least as much as a run of the system on
    average."""
    answers = sum(call.trajectory.tokens for run in runs for call in run.calls[:1])
    found = {"calls": math.ceil(sum(map(calls_of, runs)) / max(1, len(runs)))}
    if answers:  # an external Solver's are not counted
        found["tokens"] = math.ceil(sum(map(tokens_of, runs)) / answers)
    return found
