"""MarsRL's part of `marsrl.evaluation`, and the rules between its settings."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from marsrl_verl.algos.marsrl.evaluation.loop_rules import Fallback, LoopRules
from marsrl_verl.algos.marsrl.prompts import ROLES, SOLVER
from marsrl_verl.settings.declaration import limits
from marsrl_verl.settings.evaluation import EvaluationConfig, InBetweenConfig
from marsrl_verl.settings.issues import ConfigIssue
from marsrl_verl.settings.run_view import RunView


class InBetween(InBetweenConfig):
    """Evaluations in between (`marsrl.evaluation.every`): like the others but for these."""

    solver_only: bool = False
    """Evaluate the Solver alone: one generation round, where the whole system takes two or three for each
    verify–correct round."""


class Evaluation(EvaluationConfig):
    """Evaluation of the roles and of the whole system on the held-out problems."""

    in_between: InBetween = Field(default_factory=InBetween)
    """How evaluations in between differ."""
    correction_rounds: int | None = limits(None, ge=0, why="0 is none")
    """Most verify–correct rounds of the evaluated system; 0 for the Solver alone. A round is one judgement
    and, after Wrong, a correction. null: 2 where such rounds are trained, else 0."""
    accept_passes: int = limits(1, ge=1, why="a solution is accepted by a verdict")
    """Correct verdicts in a row on one solution that accept it and end the run; each takes a round. The
    greedy pass accepts at the first one."""
    reject_fails: int | None = limits(None, ge=1, why="null is no number of them")
    """Wrong verdicts in a row, on whatever solutions, after which a run is given up; null: no number of
    them."""
    fallback: Fallback = Fallback.LAST
    """The answer of a run in which nothing was accepted: the `last` solution; the one with the most Correct
    verdicts (`passes`; without any the Solver's); the same, without any the most frequent answer
    (`majority`); or by the published evaluation script's rule, on accepted runs too (`released`)."""

    def between(self) -> EvaluationConfig:
        """With the Solver alone where that is asked for."""
        one = super().between()
        if not self.in_between.solver_only:
            return one
        defaults = {name: type(self).model_fields[name].default for name in _LOOP}
        return one.model_copy(update={"correction_rounds": 0, **defaults})

    def rounds(self, trained: int) -> int:
        """Verify–correct rounds of a run; `trained`: those of training."""
        default = 2 if trained > 0 else 0
        return default if self.correction_rounds is None else self.correction_rounds

    def rules(self, rounds: int) -> LoopRules:
        """The loop's."""
        return LoopRules(rounds, self.accept_passes, self.reject_fails, self.fallback)


_LOOP = ("accept_passes", "reject_fails", "fallback")
_KEY = "marsrl.evaluation"
_ROUNDS = f"{_KEY}.correction_rounds"


def checks(run: RunView) -> Iterator[ConfigIssue]:
    """The loop's numbers against the number of rounds, and the loop against the roles that there are and
    against a frozen Solver."""
    one: Evaluation = run.settings.evaluation
    rounds = one.rounds(run.settings.algo.correction_rounds)
    if rounds and (absent := [role for role in ROLES if role not in run.settings.roles]):
        what = f"The method {run.settings.algo.name} has no {' and no '.join(absent)} for them."
        yield ConfigIssue(_ROUNDS, what, "Set evaluation=solver.", rounds)
        return
    yield from _with_rounds(one, rounds) if rounds else _without_rounds(one)
    if SOLVER in run.frozen_roles:
        yield from _frozen_solver(one, rounds)


def _with_rounds(one: Evaluation, rounds: int) -> Iterator[ConfigIssue]:
    # A round gives one verdict, so what takes more of them than there are rounds never happens.
    what = f"A round gives one verdict, so there are never so many in a row in {rounds} of them."
    fix = f"Set it to at most {_ROUNDS} = {rounds}, or raise that."
    for name in ("accept_passes", "reject_fails"):
        if (number := getattr(one, name) or 0) > rounds:
            yield ConfigIssue(f"{_KEY}.{name}", what, fix, number)


def _without_rounds(one: Evaluation) -> Iterator[ConfigIssue]:
    """Without rounds there is the Solver's solution alone."""
    what = f"With {_ROUNDS} = 0 nobody judges the Solver's solution, so it has no effect."
    fix = f"Set evaluation=solver, or leave it out, or raise {_ROUNDS}."
    for name in one.changed(*_LOOP):
        yield ConfigIssue(f"{_KEY}.{name}", what, fix, getattr(one, name))


def _frozen_solver(one: Evaluation, rounds: int) -> Iterator[ConfigIssue]:
    """Somebody who is trained has to be evaluated."""
    what = "Only the Solver would be evaluated, whose policy is frozen: training does not change it."
    if one.every > 0 and one.in_between.solver_only:
        key = f"{_KEY}.in_between.solver_only"
        yield ConfigIssue(key, what, f"Set it to false, or {_KEY}.every=0.", True)
    elif rounds == 0 and (one.before or one.after or one.every > 0):
        fix = f"Set it to 1 or more, or switch the evaluation off ({_KEY}.before, after, every)."
        yield ConfigIssue(_ROUNDS, what, fix, rounds)
