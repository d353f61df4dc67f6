"""Checks of when and on what a run is evaluated; how a system runs is checked by its method."""

from __future__ import annotations

from marsrl_verl.config.checks.context import Context
from marsrl_verl.settings.issues import ConfigIssue

_KEY = "marsrl.evaluation"


def check_in_between(ctx: Context) -> list[ConfigIssue]:
    """Evaluations in between are a part of the others."""
    one, own = ctx.settings.evaluation, ctx.settings.evaluation.in_between
    if own.problems is None or one.problems is None or own.problems <= one.problems:
        return []
    what = f"Evaluations use the first {one.problems} problems ({_KEY}.problems), those in between too."
    fix = f"Set it to at most {one.problems}, or raise that."
    return [ConfigIssue(f"{_KEY}.in_between.problems", what, fix, own.problems)]
