"""Evaluation of a workflow, which is played on held-out problems and reports figures of its own; which one a
method has."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import NOT_OBSERVED, Estimate, MetricInfo, Observations
from marsrl_verl.evaluation.runs import Call, Evaluation, ExampleSummary, Program, Run, Runs, tokens_of
from marsrl_verl.evaluation.single_role import SingleRole, pass_at_k_estimates
from marsrl_verl.rollout.runner import find_workflow
from marsrl_verl.rollout.workflow import METRICS, SOLVED, Workflow

ACCURACY = "accuracy"


def is_episode(one: Trajectory) -> bool:
    """True if a scored trajectory is a workflow's, with figures of its own."""
    return METRICS in one.scored.info


def episode_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means of what the episodes of a stage noted (`Episode.metric`), and how many of their answers are
    right; empty where there is no episode."""
    found: dict[str, list[float]] = {}
    for one in (one for group in groups for one in group.trajectories if is_episode(one)):
        for name, value in _figures(one).items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _figures(one: Trajectory) -> dict[str, float]:
    info: Any = one.scored.info
    solved = info.get(SOLVED)
    answered = {} if solved is None else {ACCURACY: float(is_correct(solved))}
    return {**answered, **{name: float(value) for name, value in info[METRICS].items()}}


def label(name: str) -> str:
    """A figure's name as readers see it."""
    return name.replace("_", " ").capitalize()


class WorkflowEvaluation(Evaluation):
    """One episode to each problem, as often as asked: accuracy and pass@k where it gives an answer
    (`Episode.answer`), and the means of its own figures.

    Args:
        stage: whose workflow is played.
        prompts: words the problem.
    """

    def __init__(self, stage: Stage, prompts: Prompts) -> None:
        self.stage, self.prompts, self.roles = stage, prompts, stage.roles
        self.metrics: Mapping[str, MetricInfo] = {
            ACCURACY: MetricInfo("Accuracy", "share of problems whose answer is right")
        }

    def program(self, run: Run) -> Program:
        """A single request."""
        stage = self.stage
        messages = self.prompts.problem(run.problem)
        one = yield run.request(stage.name, stage.role, messages, rollout=stage.workflow)
        solved: Any = one.scored.info.get(SOLVED) or 0.0
        run.final_reward = float(solved) if one.finished else 0.0
        run.answer = one if one.finished and one.final_text else None
        run.end = one.finish.value

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """Correctness of the answer, and each figure of the episodes that noted it."""
        found: dict[str, list[tuple[float, str]]] = {}
        answers = any(ACCURACY in _figures(run.calls[0].trajectory) for run in runs.runs)
        for run in runs.runs:
            figures = _figures(run.calls[0].trajectory)
            if answers:  # an episode that ended before its answer has none
                figures[ACCURACY] = float(run.solved)
            for name, value in figures.items():
                found.setdefault(name, []).append((value, run.problem.problem_id))
        own = {name: MetricInfo(label(name), f"mean of {name}, as the episodes note it") for name in found}
        self.metrics = {**own, **self.metrics}
        return {name: Observations.of(pairs) for name, pairs in found.items()}

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """pass@k of right answers."""
        return pass_at_k_estimates(self.stage.name, observations.get(ACCURACY, NOT_OBSERVED), confidence)

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Messages and tokens of an episode."""
        return runs.means(
            confidence, messages=lambda run: len(run.calls[0].trajectory.events), tokens=tokens_of
        )

    def description(self) -> str:
        """Describes an episode by the roles that take part."""
        return f"An episode of {', '.join(self.roles)} to each problem; its answer is graded."

    def example_summary(self, run: Run) -> ExampleSummary:
        """Sums up the result of a problem."""
        if run.solved:
            return ExampleSummary(2, f"Solved by {self.stage.name}")
        what = "wrong answer" if run.answer is not None else "no answer"
        return ExampleSummary(1, f"Not solved by {self.stage.name}: {what}")

    def example_call(self, call: Call) -> str:
        """The stage, as each message has its agent's name."""
        return call.request.stage.capitalize()


def method_evaluation(
    method: type[Method], config: object, evaluation: object, prompts: Prompts
) -> Evaluation:
    """The method's own (`Method.evaluation`); else its first stage's workflow is played, or the role of that
    stage answers.

    Raises:
        ValueError: there is no such workflow.
    """
    found: Evaluation | None = method.evaluation(config, evaluation, prompts)
    if found is not None:
        return found
    first: Stage = method.stages(config)[0]
    program = find_workflow(first.workflow)
    if inspect.isclass(program) and issubclass(program, Workflow):
        return WorkflowEvaluation(first, prompts)
    return SingleRole(first.role, prompts, first.workflow)
