"""An agent's evaluation: its accuracy, and how many calls a solved problem takes."""

from __future__ import annotations

import math

from marsrl_verl.algos.arpo.figures import executed
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.trajectory import Trajectory
from marsrl_verl.evaluation.estimators import Estimate, mean_estimate
from marsrl_verl.evaluation.runs import Program, Run, Runs, answer_reward, is_usable
from marsrl_verl.evaluation.single_role import SingleRole


class AgentEvaluation(SingleRole):
    """As `SingleRole`: one trajectory with tools and without forks for each answer.

    Args:
        role, prompts, rollout: as there.
        protocol: how tools are called.
    """

    def __init__(self, role: str, prompts: Prompts, rollout: str, protocol: str) -> None:
        super().__init__(role, prompts, rollout)
        self.protocol = str(protocol)

    def program(self, run: Run) -> Program:
        """A single request."""
        messages, inputs = self.prompts.problem(run.problem), {"protocol": self.protocol}
        trajectory = yield run.request(self.role, self.role, messages, rollout=self.rollout, inputs=inputs)
        run.final_reward = answer_reward(trajectory) - _bonus(trajectory)
        run.answer = trajectory if is_usable(trajectory) else None
        run.end = trajectory.finish.value

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        """Calls of the model, tokens and executed tool calls of a run; tool calls for each that is solved."""
        found = super().effort(runs, confidence)
        calls = [(float(_executed(run)), run.problem.problem_id) for run in runs.runs]
        found["tool_calls"] = mean_estimate(calls, confidence)
        found["tool_calls_per_solved"] = _per_solved(runs, confidence)
        return found

    def description(self) -> str:
        """What is asked."""
        return f"The {self.role.capitalize()} with its tools: its final answer is graded."


def _bonus(one: Trajectory) -> float:
    """What the reward adds for the use of tools: it makes no answer right."""
    found = one.scored.info.get("bonus")
    return found if is_usable(one) and isinstance(found, float) else 0.0


def _executed(run: Run) -> int:
    return sum(len(executed(call.trajectory)) for call in run.calls)


def _per_solved(runs: Runs, confidence: float) -> Estimate:
    """All executed calls over all solved runs, with the interval of a ratio: its residuals, clustered by
    problem."""
    solved = sum(run.solved for run in runs.runs)
    if not solved:
        return Estimate(None, None, None, 0)
    ratio = sum(map(_executed, runs.runs)) / solved
    share = solved / len(runs.runs)
    residuals = [((_executed(run) - ratio * run.solved) / share, run.problem.problem_id) for run in runs.runs]
    around = mean_estimate(residuals, confidence)
    if around.low is None or around.high is None or not math.isfinite(ratio):
        return Estimate(ratio, None, None, solved)
    return Estimate(ratio, max(0.0, ratio + around.low), ratio + around.high, solved)
