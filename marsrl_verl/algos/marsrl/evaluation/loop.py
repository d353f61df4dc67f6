"""The Verifier–Corrector reasoning system (MarsRL, arXiv 2511.11373, §3.1).

The Solver answers; in each round the Verifier judges the current solution and, where the verdict is Wrong,
the Corrector rewrites it. Rules (settings and choice of the answer: `loop_rules`):

- verdict Correct: the solution is accepted and the run ends, or, with `accept_passes` above 1, the next round
  judges the same solution again until it has so many in a row;
- verdict Wrong: the Corrector rewrites the solution; the `reject_fails`-th in a row ends the run instead;
- verdict INVALID (none readable, or cut off): the Verifier is prompted a second time; INVALID again counts as
  Wrong, and the Verifier's text is the report. Without any text there is nothing to correct by, and the run
  ends;
- a problem whose prompt exceeds the Solver's limit is not evaluated, but kept apart (`Runs.skipped`);
- an unfinished or empty Solver solution has reward 0 and is not shown to the Verifier;
- a Corrector's text replaces the current solution only if it is finished and not empty; otherwise the next
  round judges the kept solution again;
- the last correction is not verified; if an unjudged correction can't be the answer, it is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import asdict, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from marsrl_verl.algos.marsrl.evaluation import best_of, frozen, role_metrics
from marsrl_verl.algos.marsrl.evaluation.loop_rules import (
    AGAIN,
    Decision,
    Fallback,
    LoopRules,
    RunEnd,
    SystemRun,
    choose_answer,
    report_of,
    verdict_of,
)
from marsrl_verl.algos.marsrl.evaluation.system_pictures import system_pictures
from marsrl_verl.algos.marsrl.prompts import CORRECTOR, ROLES, SOLVER, VERIFIER, RolePrompts
from marsrl_verl.algos.marsrl.verdict import Verdict, right_verdict
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import NOT_OBSERVED, Estimate, MetricInfo, Observations
from marsrl_verl.evaluation.pictures import Picture
from marsrl_verl.evaluation.runs import (
    Call,
    Evaluation,
    ExampleSummary,
    Program,
    Run,
    Runs,
    answer_reward,
    ending,
    is_usable,
)
from marsrl_verl.evaluation.single_role import majority_observations, pass_at_k_estimates


class VerifyCorrect(Evaluation):
    """Evaluation of the Verifier–Corrector system.

    Args:
        prompts: words the roles' prompts.
        rules: settings of the loop, with at least one round.
    """

    roles = ROLES
    metrics: Mapping[str, MetricInfo] = MappingProxyType(
        {**role_metrics.EVALUATION_METRICS, **best_of.EQUAL_METRICS, **frozen.FROZEN_METRICS}
    )
    curves = ("solver_accuracy", "verifier_accuracy", "corrector_fix_rate", "system_accuracy")
    headline = ("solver_accuracy", "system_accuracy", "verifier_recall")

    def __init__(self, prompts: RolePrompts, rules: LoopRules) -> None:
        if rules.correction_rounds < 1:
            raise ValueError("correction_rounds is 0: evaluate the Solver alone (SingleRole)")
        self.prompts = prompts
        self.rules = rules

    @property
    def max_calls(self) -> Mapping[str, int]:
        """Most calls of each role: no run ends early, and every verdict has to be prompted for twice."""
        rounds = self.rules.correction_rounds
        return {SOLVER: 1, VERIFIER: 2 * rounds, CORRECTOR: rounds}

    def check_row(self, problem: Problem) -> None:
        """Checks that the row's frozen solutions can be read."""
        frozen.frozen_solutions(problem)

    def begin(self, problem: Problem, repeat: int, name: str, step: int) -> SystemRun:
        return SystemRun(problem, repeat, name, step)

    def program(self, run: Run) -> Program:
        """Runs the Solver, then rounds until a decision ends them."""
        assert isinstance(run, SystemRun)
        yield from self._solve(run)
        number, goes_on = 0, run.solution is not None
        while goes_on and number < self.rules.correction_rounds:
            number += 1
            decision = yield from self._verify(run, number)
            if decision is Decision.CORRECT:
                yield from self._correct(run, number)
            goes_on = decision is not Decision.END
        run.answer = choose_answer(run.calls, self.rules.fallback, accepted=run.end is RunEnd.ACCEPTED)
        run.final_reward = run.answer.value if run.answer else 0.0
        if not run.skipped:
            yield from frozen.judge_frozen(run, self.prompts)

    def _solve(self, run: SystemRun) -> Program:
        trajectory = yield run.request(SOLVER, SOLVER, self.prompts.solver(run.problem))
        run.solver_reward = answer_reward(trajectory)
        if is_usable(trajectory):
            run.solution = trajectory
        else:
            run.end = RunEnd.NO_SOLUTION

    def _verify(self, run: SystemRun, number: int) -> Generator[RolloutRequest, Trajectory, Decision]:
        """Prompts the Verifier with the current solution; returns the decision about it."""
        stage, solution = f"{VERIFIER}_{number}", _solution(run)
        messages = self.prompts.verifier(run.problem, solution.final_text)
        judgement = yield self._request(run, stage, VERIFIER, messages, solution)
        if verdict_of(judgement) is Verdict.INVALID:
            judgement = yield self._request(run, f"{stage}{AGAIN}", VERIFIER, messages, solution)
        verdict = verdict_of(judgement)
        if verdict is Verdict.INVALID and not report_of(judgement).strip():
            run.end = RunEnd.NO_VERDICT
            return Decision.END
        return run.decide(self.rules, verdict, number)

    def _correct(self, run: SystemRun, number: int) -> Program:
        """Prompts the Corrector to repair the flagged solution."""
        judgement, solution = run.calls[-1].trajectory, _solution(run)
        messages = self.prompts.corrector(run.problem, solution.final_text, report_of(judgement))
        trajectory = yield self._request(run, f"{CORRECTOR}_{number}", CORRECTOR, messages, judgement)
        if is_usable(trajectory):
            run.solution = trajectory

    @staticmethod
    def _request(
        run: SystemRun, stage: str, role: str, messages: tuple[Message, ...], parent: Trajectory
    ) -> RolloutRequest:
        solution = _solution(run)
        inputs = {"solution": solution.final_text, "solution_reward": solution.value}
        return run.request(stage, role, messages, parent_id=parent.trajectory_id, inputs=inputs)

    # --- what is measured ----------------------------------------------------------------------

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """Returns the observations of the metrics, and those of several solutions of the Solver."""
        several = {**majority_observations(SOLVER, runs), **best_of.best_of_observations(runs)}
        return {**role_metrics.system_observations(runs), **frozen.frozen_observations(runs), **several}

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        return role_metrics.effort(runs, confidence)

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """Returns the Solver's pass@k, the Verifier's F1, and the system's gains at equal cost."""
        solver = pass_at_k_estimates(SOLVER, observations.get("solver_accuracy", NOT_OBSERVED), confidence)
        gains = best_of.system_gains(observations, confidence)
        return {**solver, **role_metrics.f1_estimates(observations, confidence), **gains}

    def pictures(self, runs: Runs, confidence: float) -> Iterator[Picture]:
        return system_pictures(runs, self.rules, confidence)

    def greedy(self) -> VerifyCorrect:
        """Returns the system that accepts at the first Correct verdict: at temperature 0 a Verifier that is
        prompted again with one solution repeats itself."""
        return VerifyCorrect(self.prompts, replace(self.rules, accept_passes=1))

    def settings(self) -> dict[str, Any]:
        return {**asdict(self.rules), "fallback": Fallback(self.rules.fallback).value}

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        return role_metrics.log_fields(request, trajectory)

    # --- an example for readers ----------------------------------------------------------------

    def example_summary(self, run: Run) -> ExampleSummary:
        """Ranks a run as an example; best is a repair that was accepted."""
        assert isinstance(run, SystemRun)
        shown = shown_by(run)
        return ExampleSummary(shown, HEADLINES[shown])

    def example_call(self, call: Call) -> str:
        """Returns the role and the round."""
        name, _, number = call.request.stage.partition("_")
        if call.trajectory.external:
            return f"{name.capitalize()} (external)"
        return f"{name.capitalize()} (round {number})" if number else name.capitalize()

    def outcome(self, call: Call, quote: Callable[[str], str]) -> str:
        """Returns a Verifier's verdict and whether it is right; the answer of the other roles."""
        if call.request.role != VERIFIER:
            return super().outcome(call, quote)
        verdict = verdict_of(call.trajectory)
        if verdict is Verdict.INVALID:
            return f"no readable verdict{ending(call.trajectory)}"
        right = verdict is right_verdict(call.request.inputs["solution_reward"])
        said = f"verdict {verdict.value.capitalize()}, {'rightly' if right else 'wrongly'}"
        return f"{said}{ending(call.trajectory)}"

    def result(self, run: Run) -> str:
        """Returns how the run ended, and which call gave the answer if it is not the last solution."""
        assert isinstance(run, SystemRun)
        result = super().result(run)
        if run.answer is run.solution:
            return result
        chosen = next(self.example_call(call) for call in run.calls if call.trajectory is run.answer)
        return f"{result[:-1]}; answer: {chosen})"

    def description(self) -> str:
        """Describes when the system stops, and its answer."""
        return (
            f"Solver, then up to {self.rules.correction_rounds} verify–correct round(s). "
            f"{_stops(self.rules)} An unreadable verdict is sampled once more and then counts as Wrong; a "
            "Corrector's text counts only if it is finished. The Verifier and the Corrector are measured on "
            "what the system showed them in this evaluation, all rounds together: after training that is "
            "other text than before, from a better or worse Solver. Fewer incorrect solutions alone lower "
            "the Verifier's precision, and leave the Corrector the harder ones."
        )


_ANSWERS = {
    Fallback.LAST: "the last one is the answer",
    Fallback.PASSES: "the one with the most Correct verdicts is the answer",
    Fallback.MAJORITY: "the one with the most Correct verdicts is the answer, and without any such "
    "verdict the most frequent final answer",
}


def _stops(rules: LoopRules) -> str:
    accepted = "A solution with verdict Correct is accepted"
    if rules.accept_passes > 1:
        accepted = (
            f"A solution with {rules.accept_passes} Correct verdicts in a row is accepted (in the greedy "
            "rows with one)"
        )
    parts = [accepted]
    if rules.reject_fails is not None:
        parts.append(f"after {rules.reject_fails} Wrong verdict(s) in a row the run ends")
    fallback = Fallback(rules.fallback)
    if fallback is Fallback.RELEASED:
        parts.append(
            "the answer is the solution that was judged most often, accepted or not (the released rule)"
        )
    else:
        parts.append(f"where none is, {_ANSWERS[fallback]}")
    return "; ".join(parts) + "."


def _solution(run: SystemRun) -> Trajectory:
    if run.solution is None:
        raise ValueError(f"problem {run.problem.problem_id}: there is no solution to judge")
    return run.solution


class Shown(IntEnum):
    """Course of a run as an example (`HEADLINES`), the most telling last."""

    OTHER = 0
    UNFINISHED = 1
    ACCEPTED = 2
    FOUND = 3
    REPAIRED = 4
    REPAIRED_AND_ACCEPTED = 5


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
    """Returns the course of a run."""
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
