"""Checks of the evaluated system's loop: when a solution is accepted, and what the answer is."""

from __future__ import annotations

from marsrl_verl.algos.marsrl.prompts import CORRECTOR, VERIFIER
from marsrl_verl.config.checks.context import Context
from marsrl_verl.config.schema import EvaluationConfig
from marsrl_verl.settings.issues import ConfigIssue

_KEY = "marsrl.evaluation"
_ROUNDS = f"{_KEY}.correction_rounds"
LOOP_ROLES = (VERIFIER, CORRECTOR)
"""Who is asked in a round of the evaluated loop."""


def check_in_between(ctx: Context) -> list[ConfigIssue]:
    """Evaluations in between are a part of the others."""
    one, own = ctx.settings.evaluation, ctx.settings.evaluation.in_between
    if own.problems is None or one.problems is None or own.problems <= one.problems:
        return []
    what = f"Evaluations use the first {one.problems} problems ({_KEY}.problems), those in between too."
    fix = f"Set it to at most {one.problems}, or raise that."
    return [ConfigIssue(f"{_KEY}.in_between.problems", what, fix, own.problems)]


def check_loop_rounds(ctx: Context) -> list[ConfigIssue]:
    """The loop's numbers against the number of rounds."""
    one = ctx.settings.evaluation
    rounds = one.correction_rounds
    if rounds == 0:
        return _check_no_rounds(one)
    if absent := [role for role in LOOP_ROLES if role not in ctx.method.roles]:
        what = f"The method {ctx.settings.algo.name} has no {' and no '.join(absent)} for them."
        return [ConfigIssue(_ROUNDS, what, "Set evaluation=solver.", rounds)]
    # A round gives one verdict, so what takes more of them than there are rounds never happens.
    numbers = (("accept_passes", one.accept_passes), ("reject_fails", one.reject_fails or 0))
    return [
        ConfigIssue(
            f"{_KEY}.{name}",
            f"A round gives one verdict, so there are never so many in a row in {rounds} of them.",
            f"Set it to at most {_ROUNDS} = {rounds}, or raise that.",
            number,
        )
        for name, number in numbers
        if number > rounds
    ]


def _check_no_rounds(one: EvaluationConfig) -> list[ConfigIssue]:
    """Without rounds there is the Solver's solution alone."""
    return [
        ConfigIssue(
            f"{_KEY}.{name}",
            f"With {_ROUNDS} = 0 nobody judges the Solver's solution, so it has no effect.",
            f"Set evaluation=solver, or leave it out, or raise {_ROUNDS}.",
            getattr(one, name),
        )
        for name in one.changed("accept_passes", "reject_fails", "fallback")
    ]
