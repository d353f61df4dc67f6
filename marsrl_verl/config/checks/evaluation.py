"""Checks of the evaluated system's loop: when a solution is accepted, and what the answer is."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.checks.method import at_least, one_of
from marsrl_verl.config.errors import Problem
from marsrl_verl.config.schema import EvaluationConfig
from marsrl_verl.evaluation.verify_correct.loop_rules import Fallback

_KEY = "marsrl.evaluation"
_ROUNDS = f"{_KEY}.correction_rounds"
FALLBACKS = tuple(one.value for one in Fallback)


def check_loop(ctx: Context) -> list[Problem]:
    """The loop's choices and ranges."""
    one = ctx.settings.evaluation
    return [
        *at_least(f"{_KEY}.accept_passes", one.accept_passes, 1, "a solution is accepted by a verdict"),
        *at_least(f"{_KEY}.reject_fails", one.reject_fails, 1, "null is no number of them"),
        *one_of(f"{_KEY}.fallback", one.fallback, FALLBACKS),
        *_check_in_between(one),
    ]


def _check_in_between(one: EvaluationConfig) -> list[Problem]:
    """Evaluations in between are a part of the others."""
    own, key = one.in_between, f"{_KEY}.in_between"
    problems = [
        *at_least(f"{key}.problems", own.problems, 1, "null is as many as the others"),
        *at_least(f"{key}.samples_per_problem", own.samples_per_problem, 1, "null is as many as the others"),
    ]
    if own.problems is not None and one.problems is not None and own.problems > one.problems:
        what = f"Evaluations use the first {one.problems} problems ({_KEY}.problems), those in between too."
        problems.append(
            Problem(
                f"{key}.problems", what, f"Set it to at most {one.problems}, or raise that.", own.problems
            )
        )
    return problems


def check_loop_rounds(ctx: Context) -> list[Problem]:
    """The loop's numbers against the number of rounds."""
    one = ctx.settings.evaluation
    rounds = one.correction_rounds
    if rounds == 0:
        return _check_no_rounds(one)
    # A round gives one verdict, so what takes more of them than there are rounds never happens.
    numbers = (("accept_passes", one.accept_passes), ("reject_fails", one.reject_fails or 0))
    return [
        Problem(
            f"{_KEY}.{name}",
            f"A round gives one verdict, so there are never so many in a row in {rounds} of them.",
            f"Set it to at most {_ROUNDS} = {rounds}, or raise that.",
            number,
        )
        for name, number in numbers
        if number > rounds
    ]


def _check_no_rounds(one: EvaluationConfig) -> list[Problem]:
    """Without rounds there is the Solver's solution alone."""
    usual = EvaluationConfig()
    return [
        Problem(
            f"{_KEY}.{name}",
            f"With {_ROUNDS} = 0 nobody judges the Solver's solution, so it has no effect.",
            f"Set evaluation=solver, or leave it out, or raise {_ROUNDS}.",
            getattr(one, name),
        )
        for name in ("accept_passes", "reject_fails", "fallback")
        if getattr(one, name) != getattr(usual, name)
    ]
