"""What each evaluation of a run does, and what it costs at most."""

from __future__ import annotations

from dataclasses import dataclass

from marsrl_verl.config.schema import EvaluationConfig, MarsRLConfig
from marsrl_verl.evaluation.suite import AFTER, ALONE, BEFORE


def evaluation_at(settings: EvaluationConfig, tag: str) -> EvaluationConfig:
    """The settings of one evaluation: with `in_between` during training, else as they are."""
    if tag in (BEFORE, AFTER, ALONE):
        return settings
    own, usual = settings.in_between, EvaluationConfig()
    changed = {
        "problems": settings.problems if own.problems is None else own.problems,
        "samples_per_problem": own.samples_per_problem or settings.samples_per_problem,
    }
    if own.solver_only:
        loop = ("accept_passes", "reject_fails", "fallback")
        changed |= {"correction_rounds": 0, **{name: getattr(usual, name) for name in loop}}
    return settings.model_copy(update=changed)


@dataclass(frozen=True, slots=True)
class EvaluationCost:
    """Upper bounds of one evaluation, the greedy pass included."""

    problems: int
    runs: int
    responses: int
    tokens: int
    """That the trained model generates."""


def evaluation_cost(
    settings: MarsRLConfig, tag: str, held_out: int, *, external_solver: bool = False
) -> EvaluationCost:
    """What an evaluation generates if no run ends early, every verdict has to be asked for twice and every
    response is as long as its role may write.

    Args:
        tag: as in `evaluation_at`.
        held_out: problems in the validation files.
        external_solver: the Solver's answers are not generated here.
    """
    one = evaluation_at(settings.evaluation, tag)
    problems = held_out if one.problems is None else min(held_out, one.problems)
    runs = problems * (one.samples_per_problem + one.greedy)
    solver = 0 if external_solver else 1
    responses = solver + 3 * one.correction_rounds
    tokens = solver * _tokens(settings, "solver") + one.correction_rounds * (
        2 * _tokens(settings, "verifier") + _tokens(settings, "corrector")
    )
    return EvaluationCost(problems, runs, runs * responses, runs * tokens)


def _tokens(settings: MarsRLConfig, role: str) -> int:
    """Most tokens of a role's response; 0 where the method does not have it."""
    return settings.roles[role].max_new_tokens if role in settings.roles else 0
