"""How a plan and the solution that follows it are evaluated together, or one agent's solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from marsrl_verl.algos.rema import json_actions
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn.config import PLAN, SOLUTION, Config, PlanForm, Process
from marsrl_verl.algos.rema.single_turn.judge import swapped
from marsrl_verl.algos.rema.single_turn.plans import difficulty_of, instruction_of
from marsrl_verl.algos.rema.single_turn.prompts import PlanPrompts
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import Estimate, MetricInfo, Observations
from marsrl_verl.evaluation.runs import (
    Call,
    Evaluation,
    ExampleSummary,
    Program,
    Run,
    Runs,
    answer_reward,
    calls_of,
    is_usable,
    tokens_of,
)

SWAPPED = f"{SOLUTION}_swapped"
"""The stage at which the two answers of a pair have changed places."""

ACCURACY = MetricInfo("Accuracy", "share of runs whose answer is correct")
FINISHED = MetricInfo("Finished", "share of runs with an answer that came to its end")
LEAK = MetricInfo("Plans that leak", "share of plans that give the answer away", higher_is_better=False)
BOTH = MetricInfo("Accuracy", "share of pairs whose verdicts are right in both orders")
FIRST = MetricInfo("First order right", "share of pairs whose verdict is right in the order of the data")
AGREE = MetricInfo("Orders agree", "share of pairs for which both orders prefer the same answer")


class PlanAndSolve(Evaluation):
    """One plan and one solution for each run; with pairs of answers that are judged in both orders a second
    one.

    Args:
        config: the method's settings.
        prompts: the agents' wording.
        both_orders: whether pairs are judged in both orders.
    """

    def __init__(self, config: Config, prompts: PlanPrompts, *, both_orders: bool = False) -> None:
        self.config, self.prompts, self.both_orders = config, prompts, both_orders
        planned = config.process is Process.MAMRP
        self.roles = (META_THINKING, REASONING) if planned else (REASONING,)
        self.metrics: dict[str, MetricInfo] = {"accuracy": ACCURACY, "finished_share": FINISHED}
        if planned:
            self.metrics["leak_share"] = LEAK
        if both_orders:
            self.metrics |= {"accuracy": BOTH, "first_order_accuracy": FIRST, "order_agreement": AGREE}

    @property
    def most_calls(self) -> dict[str, int]:
        """A plan, and a solution for each order of the answers."""
        return {role: 2 if self.both_orders and role == REASONING else 1 for role in self.roles}

    @property
    def curves(self) -> tuple[str, ...]:
        """How many answers are right."""
        return ("accuracy", *(("first_order_accuracy",) if self.both_orders else ()))

    def program(self, run: Run) -> Program:
        """The plan, then the solution; a plan that nobody can follow ends the run."""
        plan, parent = "", None
        if self.config.process is Process.MAMRP:
            trajectory = yield self._plan_request(run)
            instruction = instruction_of(trajectory, self.config.plan_form)
            if instruction is None:
                run.end = "no_plan"
                return
            plan, parent = instruction, trajectory.trajectory_id
        messages, inputs = self._messages(run.problem, plan), None if parent is None else {"plan": plan}
        request = run.request(SOLUTION, REASONING, messages, parent_id=parent, inputs=inputs)
        solution = yield request
        run.end, run.answer = ("answered", solution) if is_usable(solution) else ("no_answer", None)
        run.final_reward = answer_reward(solution)
        if self.both_orders:
            name, problem = f"{run.name}/{SWAPPED}", swapped(run.problem)
            messages = self._messages(problem, plan)
            other = yield replace(request, group_id=name, stage=SWAPPED, problem=problem, messages=messages)
            run.final_reward = min(run.final_reward, answer_reward(other))

    def _plan_request(self, run: Run) -> RolloutRequest:
        if self.config.plan_form is PlanForm.JSON:
            messages, inputs = self.prompts.action(run.problem), {"form": "json"}
            return run.request(PLAN, META_THINKING, messages, inputs=inputs, rollout=json_actions.PROGRAM)
        return run.request(PLAN, META_THINKING, self.prompts.plan(run.problem))

    def _messages(self, problem: Any, plan: str) -> Any:
        if self.config.process is Process.MAMRP:
            return self.prompts.solution(problem, plan)
        alone = self.prompts.planned if self.config.process is Process.MRP else self.prompts.direct
        return alone(problem)

    # --- what is measured ----------------------------------------------------------------------

    def observations(self, runs: Runs) -> dict[str, Observations]:
        """Yes or no by run, plan and pair."""
        found = {
            "accuracy": [(run.solved, run.problem.problem_id) for run in runs.runs],
            "finished_share": [(run.answer is not None, run.problem.problem_id) for run in runs.runs],
        }
        if self.config.process is Process.MAMRP:
            found["leak_share"] = [
                (bool(call.trajectory.scored.info["leak"]), call.request.problem.problem_id)
                for call in runs.calls
                if call.request.stage == PLAN and "leak" in call.trajectory.scored.info
            ]
        if self.both_orders:
            pairs = [(run.problem.problem_id, *_verdicts(run)) for run in runs.runs]
            found["first_order_accuracy"] = [(right, name) for name, right, _ in pairs]
            found["order_agreement"] = [(same, name) for name, _, same in pairs]
        return {name: Observations.of(outcomes) for name, outcomes in found.items()}

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        return runs.means(confidence, calls=calls_of, tokens=tokens_of)

    def settings(self) -> dict[str, Any]:
        """Who answers, and how."""
        return {"process": str(self.config.process), "both_orders": self.both_orders}

    def description(self) -> str:
        orders = " Each pair of answers is judged in both orders." if self.both_orders else ""
        who = {
            Process.MAMRP: "The meta-thinking agent plans, the reasoning agent follows the plan",
            Process.MRP: "One agent plans and solves in one answer",
            Process.VRP: "One agent solves",
        }
        return f"{who[self.config.process]}; its answer is graded.{orders}"

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """The answer, or what was found in a plan."""
        info = trajectory.scored.info
        level = {"level": difficulty_of(request.problem)}
        if request.stage == PLAN:
            action = json_actions.parse_action(trajectory.final_text)
            kind = None if action is None else action.kind.value
            return {**level, "leak": info.get("leak"), "leaked": info.get("leaked"), "action": kind}
        return {**level, "answer": info.get("answer"), "plan": request.inputs.get("plan")}

    def example_summary(self, run: Run) -> ExampleSummary:
        """Best is a plan that was followed to the right answer."""
        if run.end == "no_plan":
            return ExampleSummary(0, "Nobody can follow the plan")
        rank, end = (2, "to a wrong answer") if run.answer else (1, "without an answer")
        if run.solved:
            rank, end = 3, "to the right answer"
        summary = "The reasoning agent follows the plan" if len(self.roles) == 2 else "The agent answers"
        return ExampleSummary(rank, f"{summary} {end}")

    def outcome(self, call: Call, quote: Callable[[str], str]) -> str:
        """Whether a plan leaks; the answer of a solution."""
        if call.request.stage != PLAN:
            return super().outcome(call, quote)
        return "a plan that gives the answer away" if call.trajectory.scored.info.get("leak") else "a plan"


def _verdicts(run: Run) -> tuple[bool, bool]:
    """Of a pair: whether the verdict is right in the order of the data, and whether both orders prefer one
    answer."""
    trajectories: Mapping[str, Trajectory] = {call.request.stage: call.trajectory for call in run.calls}
    first, second = trajectories.get(SOLUTION), trajectories.get(SWAPPED)
    right = first is not None and is_correct(answer_reward(first))
    found = [None if one is None else one.scored.info.get("answer") for one in (first, second)]
    agree = None not in found and found[0] != found[1]  # the answers have changed places
    return right, agree
