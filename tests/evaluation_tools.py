"""Trajectories by hand, and MarsRL's system over problems in one call."""

from __future__ import annotations

from collections.abc import Sequence as Items

from marsrl_verl.algos.marsrl.evaluation.loop import VerifyCorrect
from marsrl_verl.algos.marsrl.evaluation.loop_rules import LoopRules
from marsrl_verl.algos.marsrl.prompts import SOLVER
from marsrl_verl.algos.marsrl.verdict import Verdict
from marsrl_verl.core.sequence import Sequence
from marsrl_verl.core.trajectory import FinishReason, RewardResult, Trajectory
from marsrl_verl.evaluation.runs import Evaluation, Runs, run_evaluation
from marsrl_verl.evaluation.single_role import SingleRole
from marsrl_verl.evaluation.text_metrics import text_figures


def trajectory(
    name: str = "g#0",
    *,
    reward: float | None = 0.0,
    answer: str | None = None,
    verdict: Verdict | None = None,
    report: str | None = None,
    error: str | None = None,
    finish: FinishReason = FinishReason.STOP,
    text: str = "x",
    ids: Items[int] = (2,),
    versions: Items[tuple[int, int]] = (),
    role: str = SOLVER,
) -> Trajectory:
    """A single call's trajectory; `error` is the grader's. The figures of its text are those that it has."""
    info = {"answer": answer, "verdict": verdict and verdict.value, "report": report}
    result = None if reward is None else RewardResult(reward, info, error, graded=error is None)
    sequence = Sequence(role, [1], list(ids), [-0.5] * len(ids), versions=tuple(versions))
    figures = text_figures(list(ids), text)
    found = {
        field: float(value)
        for field in ("repetition", "distinct", "reflection_words")
        if (value := getattr(figures, field)) is not None
    }
    return Trajectory(name, [sequence], finish, text, text, result, figures=found)


def system(prompts, correction_rounds: int = 2, **rules) -> Evaluation:
    """The Solver alone, or with rounds of Verifier and Corrector."""
    if correction_rounds == 0:
        return SingleRole(SOLVER, prompts)
    return VerifyCorrect(prompts, LoopRules(correction_rounds, **rules))


def evaluate_system(
    engine, problems, prompts, sampling, *, tag="t", samples_per_problem=1, step=0, **rules
) -> Runs:
    """All runs of the system with these rules."""
    return run_evaluation(
        engine, system(prompts, **rules), problems, sampling, repeats=samples_per_problem, tag=tag, step=step
    )
