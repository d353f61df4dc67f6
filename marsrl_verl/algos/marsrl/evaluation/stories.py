"""What a run of the system shows a reader."""

from __future__ import annotations

from enum import IntEnum

from marsrl_verl.algos.marsrl.evaluation.loop_rules import RunEnd, SystemRun, verdict_of
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.trajectory import is_correct
from marsrl_verl.evaluation.runs import Call, ending


class Shown(IntEnum):
    """What an example shows, the most telling last."""

    OTHER = 0
    UNFINISHED = 1
    """The Solver gave no usable solution."""
    ACCEPTED = 2
    """The Solver is correct and the Verifier accepts."""
    FOUND = 3
    """The Solver is wrong, the Verifier finds it, the repair fails."""
    REPAIRED = 4
    """The Solver is wrong, the Verifier finds it, the Corrector repairs it."""
    REPAIRED_AND_ACCEPTED = 5
    """And the Verifier accepts the repaired solution."""


HEADLINES = {
    Shown.OTHER: "How one problem went through the stages",
    Shown.UNFINISHED: "The Solver gave no usable solution",
    Shown.ACCEPTED: "The Solver is right and the Verifier accepts",
    Shown.FOUND: "The Verifier finds the Solver's error, the repair fails",
    Shown.REPAIRED: "The Verifier finds the Solver's error and the Corrector repairs it",
    Shown.REPAIRED_AND_ACCEPTED: "The Verifier finds the Solver's error, the Corrector repairs it, and the "
    "Verifier accepts the repair",
}


def shown_by(run: SystemRun) -> Shown:
    """What a run shows."""
    if run.end is RunEnd.NO_SOLUTION:
        return Shown.UNFINISHED
    verdicts, solved_at_once = run.verdicts, is_correct(run.solver_reward)
    accepted = run.end is RunEnd.ACCEPTED
    if solved_at_once and accepted and set(verdicts) == {Verdict.CORRECT}:
        return Shown.ACCEPTED
    if solved_at_once or not verdicts or verdicts[0] is not Verdict.WRONG:
        return Shown.OTHER
    if not run.solved:
        repaired = run.solution is not None and is_correct(run.solution.value)
        return Shown.OTHER if repaired else Shown.FOUND  # a repair that was not chosen did not fail
    return Shown.REPAIRED_AND_ACCEPTED if accepted and run.answer is run.solution else Shown.REPAIRED


def verdict_outcome(call: Call) -> str:
    """What a Verifier's call came to."""
    trajectory = call.trajectory
    verdict, truth = verdict_of(trajectory), is_correct(call.request.inputs["solution_reward"])
    if verdict is Verdict.INVALID:
        return f"no readable verdict{ending(trajectory)}"
    right = verdict is (Verdict.CORRECT if truth else Verdict.WRONG)
    return f"verdict {verdict.value.capitalize()}, {'rightly' if right else 'wrongly'}{ending(trajectory)}"
