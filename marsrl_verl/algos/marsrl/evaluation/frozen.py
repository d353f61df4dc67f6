"""Verifier and Corrector on solutions that the held-out data bring along.

In the system's runs both see the Solver's own solutions, which change with training and differ between
methods. These solutions stay the same, so that their figures (`FROZEN_METRICS`) tell how good a role is,
whatever the Solver is.

A row's `extra_info` has them:

    frozen_solutions:
      - {solution: "7+5=14\\n\\\\boxed{14}", correct: false, report: "7+5=12 vs 14 bad"}

`report` is shown to the Corrector; without it the Corrector is not prompted with this solution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marsrl_verl.algos.marsrl.evaluation.role_metrics import ROLE_METRICS, role_observations
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, SOLVER, VERIFIER, RolePrompts
from marsrl_verl.core.request import Problem
from marsrl_verl.evaluation.estimators import MetricInfo, Observations
from marsrl_verl.evaluation.runs import Program, Run, Runs
from marsrl_verl.evaluation.single_role import accuracy_metric

KEY = "frozen_solutions"
PREFIX = "frozen_"
_FIELDS = {"solution": str, "correct": bool, "report": str}
_NEEDED = ("solution", "correct")

FROZEN_METRICS: dict[str, MetricInfo] = {
    PREFIX + name: MetricInfo(
        f"{info.label}, frozen",
        f"{info.meaning}; of the solutions that the data bring along",
        info.higher_is_better,
    )
    for name, info in ROLE_METRICS.items()
    if name != accuracy_metric(SOLVER)
}
"""Metrics on these solutions, absent if the data have none. The share of incorrect ones is the data's, so
none follows the Solver's errors."""


@dataclass(frozen=True, slots=True)
class FrozenSolution:
    """A solution that the data bring along."""

    solution: str
    correct: bool
    report: str | None = None
    """Bug report that the Corrector is shown."""


def frozen_solutions(problem: Problem) -> list[FrozenSolution]:
    """Returns the frozen solutions of a problem's row.

    Raises:
        ValueError: they are not written as described above.
    """
    found = problem.extra_info.get(KEY)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise ValueError(f"extra_info.{KEY} is a {type(found).__name__}, expected a list of mappings")
    return [_read(one, f"extra_info.{KEY}[{number}]") for number, one in enumerate(found)]


def _read(one: Mapping[str, Any], where: str) -> FrozenSolution:
    # Parquet has every field in every row; a null is a field that is not there.
    fields = {name: value for name, value in one.items() if value is not None}
    if unknown := sorted(fields.keys() - _FIELDS.keys()):
        raise ValueError(f"{where} has {', '.join(unknown)}, expected {', '.join(_FIELDS)}")
    for name, kind in _FIELDS.items():
        if name in fields and not isinstance(fields[name], kind):
            raise ValueError(f"{where}.{name} is a {type(fields[name]).__name__}, expected a {kind.__name__}")
    if missing := [name for name in _NEEDED if name not in fields]:
        raise ValueError(f"{where} has no {' and no '.join(missing)}")
    return FrozenSolution(**fields)


def judge_frozen(run: Run, prompts: RolePrompts) -> Program:
    """Prompts the roles with the problem's frozen solutions; the calls are beside the run's
    (`Run.beside`)."""
    problem = run.problem
    try:
        solutions = frozen_solutions(problem)
    except ValueError as error:
        raise ValueError(f"problem {problem.row or problem.problem_id}: {error}") from error
    for number, one in enumerate(solutions, 1):
        inputs = {"solution": one.solution, "solution_reward": float(one.correct)}
        prompted = {VERIFIER: prompts.verifier(problem, one.solution)}
        if one.report is not None:
            prompted[CORRECTOR] = prompts.corrector(problem, one.solution, one.report)
        for role, messages in prompted.items():
            yield run.request(f"{PREFIX}{role}_{number}", role, messages, inputs=inputs)
            run.beside.append(run.calls.pop())


def frozen_observations(runs: Runs) -> dict[str, Observations]:
    """Returns the observations of each of `FROZEN_METRICS`, by metric name; empty without such calls."""
    calls = [call for run in runs.runs for call in run.beside]
    if not calls:
        return {}
    found = role_observations(calls)
    return {name: found[name.removeprefix(PREFIX)] for name in FROZEN_METRICS}
