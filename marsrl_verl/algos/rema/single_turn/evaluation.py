"""Evaluation of a plan together with the solution that follows it, or of one agent's solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marsrl_verl.algos.rema import json_actions
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING
from marsrl_verl.algos.rema.single_turn import reranking
from marsrl_verl.algos.rema.single_turn.config import PLAN, SOLUTION, Config, PlanForm, Process
from marsrl_verl.algos.rema.single_turn.judge import swapped
from marsrl_verl.algos.rema.single_turn.plans import difficulty_of, instruction_of
from marsrl_verl.algos.rema.single_turn.prompts import PlanPrompts
from marsrl_verl.core.request import RolloutRequest
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.evaluation.estimators import NOT_OBSERVED, Estimate, MetricInfo, Observations
from marsrl_verl.evaluation.runs import (
    Call,
    Evaluation,
    ExampleSummary,
    Program,
    Run,
    Runs,
    answer_reward,
    calls_of,
    final_answer,
    is_usable,
    tokens_of,
)
from marsrl_verl.evaluation.single_role import majority_at_k, pass_at_k_estimates
from marsrl_verl.rewards.reward_model import SCORE

SWAPPED = f"{SOLUTION}_swapped"
"""The stage at which the two answers of a pair have changed places."""

ACCURACY = MetricInfo("Accuracy", "share of runs whose answer is correct")
FINISHED = MetricInfo("Finished", "share of runs with an answer that came to its end")
LEAK = MetricInfo("Plans that leak", "share of plans that give the answer away", higher_is_better=False)
BOTH = MetricInfo("Accuracy", "share of pairs for which more verdicts of both orders are right than wrong")
CONSISTENT = MetricInfo("Right in both orders", "share of pairs whose verdicts are right in both orders")
FIRST = MetricInfo("First order right", "share of pairs whose verdict is right in the order of the data")
AGREE = MetricInfo("Orders agree", "share of pairs for which both orders prefer the same answer")


class PlanAndSolve(Evaluation):
    """Evaluation by one plan and some solutions for each run; for pairs of answers that are judged in both
    orders a second solution, of the swapped pair.

    Args:
        config: the method's settings.
        prompts: the agents' wording.
        both_orders: whether pairs are judged in both orders.
        solutions: of each plan, k2 of k1 x k2; k1 are the runs of a problem. A run's answer is the one that a
            reward model scores highest, without one the first.
    """

    def __init__(
        self, config: Config, prompts: PlanPrompts, *, both_orders: bool = False, solutions: int = 1
    ) -> None:
        self.config, self.prompts, self.both_orders = config, prompts, both_orders
        self.solutions = solutions
        planned = config.process is Process.MAMRP
        self.roles = (META_THINKING, REASONING) if planned else (REASONING,)
        self.metrics: dict[str, MetricInfo] = {"accuracy": ACCURACY, "finished_frac": FINISHED}
        if planned:
            self.metrics["leak_frac"] = LEAK
        if both_orders:
            orders = {"consistent_accuracy": CONSISTENT, "first_order_accuracy": FIRST}
            self.metrics |= {"accuracy": BOTH, **orders, "order_agreement": AGREE}
        self.metrics |= reranking.METRICS

    @property
    def max_calls(self) -> dict[str, int]:
        """Most calls of each role: a plan, and its solutions or one for each order of the answers."""
        most = 2 if self.both_orders else self.solutions
        return {role: most if role == REASONING else 1 for role in self.roles}

    @property
    def curves(self) -> tuple[str, ...]:
        """Metrics of right answers."""
        return ("accuracy", *(("first_order_accuracy",) if self.both_orders else ()), *reranking.METRICS)

    def greedy(self) -> PlanAndSolve:
        """Returns the evaluation with one solution of a plan, as others would be the same."""
        return PlanAndSolve(self.config, self.prompts, both_orders=self.both_orders)

    def program(self, run: Run) -> Program:
        """Runs the plan, then its solutions; a plan that can't be followed ends the run."""
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
        found = [(yield request)]
        for number in range(2, self.solutions + 1):
            stage = f"{SOLUTION}_{number}"
            found.append((yield replace(request, group_id=f"{run.name}/{stage}", stage=stage)))
        if self.both_orders:
            name, problem = f"{run.name}/{SWAPPED}", swapped(run.problem)
            messages = self._messages(problem, plan)
            other = replace(request, group_id=name, stage=SWAPPED, problem=problem, messages=messages)
            found.append((yield other))
        usable = [one for one in found if is_usable(one)]
        run.end, run.answer = ("answered", _best(usable)) if usable else ("no_answer", None)
        run.final_reward = 0.0 if run.answer is None else answer_reward(run.answer)
        if self.both_orders:
            run.final_reward = float(_more_right(found))

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
        """Returns the outcomes by run, plan and pair."""
        found: dict[str, list[tuple[float, str]]] = {
            "accuracy": [(run.solved, run.problem.problem_id) for run in runs.runs],
            "finished_frac": [(run.answer is not None, run.problem.problem_id) for run in runs.runs],
        }
        if self.config.process is Process.MAMRP:
            found["leak_frac"] = [
                (bool(call.trajectory.scored.info["leak"]), call.request.problem.problem_id)
                for call in runs.calls
                if call.request.stage == PLAN and "leak" in call.trajectory.scored.info
            ]
        if self.both_orders:
            pairs = [(run.problem.problem_id, *_verdicts(run)) for run in runs.runs]
            found["consistent_accuracy"] = [(first and second, name) for name, first, second, _ in pairs]
            found["first_order_accuracy"] = [(first, name) for name, first, _, _ in pairs]
            found["order_agreement"] = [(same, name) for name, _, _, same in pairs]
            return {name: Observations.of(outcomes) for name, outcomes in found.items()}
        plans: dict[str, list[list[reranking.Solution]]] = {}
        for run in runs.runs:
            ended = [
                reranking.solution_of(call.trajectory) for call in run.calls if call.request.stage != PLAN
            ]
            own = ended + [reranking.MISSING] * (self.solutions - len(ended))
            plans.setdefault(run.problem.problem_id, []).append(own)
        found["accuracy"] = [(one.right, name) for name, some in plans.items() for own in some for one in own]
        several = reranking.reranked(plans, self.solutions)
        if several:
            voted = {problem: won for won, problem in majority_at_k(REASONING, runs.calls).pairs()}
            found[reranking.MAJORITY] = [(bool(voted.get(name)), name) for name in plans]
        self.metrics = {**self.metrics, **reranking.pass_metrics(several)}
        return {name: Observations.of(outcomes) for name, outcomes in found.items()} | several

    def derived(self, observations: Mapping[str, Observations], confidence: float) -> dict[str, Estimate]:
        """Returns pass@k and G-Pass@k of several runs; none with several solutions of a plan, which are no
        independent draws."""
        answers = observations.get("accuracy", NOT_OBSERVED) if self.solutions == 1 else NOT_OBSERVED
        return pass_at_k_estimates(SOLUTION, answers, confidence)

    def effort(self, runs: Runs, confidence: float) -> dict[str, Estimate]:
        return runs.means(confidence, calls=calls_of, tokens=tokens_of)

    def settings(self) -> dict[str, Any]:
        """Returns the process, the orders of pairs, and the solutions of a plan."""
        found: dict[str, Any] = {"process": str(self.config.process), "both_orders": self.both_orders}
        return found | ({"solutions_per_plan": self.solutions} if self.solutions > 1 else {})

    def description(self) -> str:
        orders = " Each pair of answers is judged in both orders." if self.both_orders else ""
        if self.solutions > 1:
            orders = f" Each plan has {self.solutions} solutions."
        who = {
            Process.MAMRP: "The meta-thinking agent plans, the reasoning agent follows the plan",
            Process.MRP: "One agent plans and solves in one answer",
            Process.VRP: "One agent solves",
        }
        return f"{who[self.config.process]}; its answer is graded.{orders}"

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """Returns the answer and a reward model's score, or what was found in a plan."""
        info = trajectory.scored.info
        level = {"level": difficulty_of(request.problem)}
        if request.stage == PLAN:
            action = json_actions.parse_action(trajectory.final_text)
            kind = None if action is None else action.kind.value
            return {**level, "leak": info.get("leak"), "leaked": info.get("leaked"), "action": kind}
        scored = {SCORE: info[SCORE]} if SCORE in info else {}
        return {**level, "answer": info.get("answer"), "plan": request.inputs.get("plan"), **scored}

    def example_summary(self, run: Run) -> ExampleSummary:
        """Ranks a run as an example; best is a plan that was followed to the right answer."""
        if run.end == "no_plan":
            return ExampleSummary(0, "The plan can't be followed")
        rank, end = (2, "to a wrong answer") if run.answer else (1, "without an answer")
        if run.solved:
            rank, end = 3, "to the right answer"
        summary = "The reasoning agent follows the plan" if len(self.roles) == 2 else "The agent answers"
        return ExampleSummary(rank, f"{summary} {end}")

    def outcome(self, call: Call, quote: Callable[[str], str]) -> str:
        """Returns whether a plan leaks; the answer of a solution."""
        if call.request.stage != PLAN:
            return super().outcome(call, quote)
        return "a plan that gives the answer away" if call.trajectory.scored.info.get("leak") else "a plan"


def _best(solutions: Sequence[Trajectory]) -> Trajectory:
    """Returns the solution that a reward model scores highest; of equal ones the first."""
    return max(solutions, key=lambda one: one.scored.info.get(SCORE, -math.inf))


def _more_right(verdicts: Sequence[Trajectory]) -> bool:
    """True if more verdicts on a pair are right than wrong, JudgeBench's rule: one that is missing is
    neither (arXiv 2410.12784)."""
    votes = [
        is_correct(answer_reward(one)) - (not is_correct(answer_reward(one)))
        for one in verdicts
        if final_answer(one) is not None
    ]
    return sum(votes) > 0


def _verdicts(run: Run) -> tuple[bool, bool, bool]:
    """Returns for a pair whether the verdict is right in the order of the data, whether it is in the other
    one, and whether both orders prefer one answer."""
    trajectories: Mapping[str, Trajectory] = {call.request.stage: call.trajectory for call in run.calls}
    first, second = trajectories.get(SOLUTION), trajectories.get(SWAPPED)
    right, also = (one is not None and is_correct(answer_reward(one)) for one in (first, second))
    found = [None if one is None else one.scored.info.get("answer") for one in (first, second)]
    agree = None not in found and found[0] != found[1]  # the answers have changed places
    return right, also, agree
