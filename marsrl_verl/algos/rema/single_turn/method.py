"""ReMA in a single turn: a plan, then a solution that follows it; the two agents are trained in turns (arXiv
2503.09501, §3.2.1, alg. 1), and so are the baselines of one agent, VRP and MRP, on the same stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marsrl_verl.algos.rema import json_actions
from marsrl_verl.algos.rema.leak import LOOK_FOR_VALUES
from marsrl_verl.algos.rema.prompts import AGENTS, META_THINKING, REASONING, ROLES
from marsrl_verl.algos.rema.single_turn import config as settings_of
from marsrl_verl.algos.rema.single_turn import plans, rewards
from marsrl_verl.algos.rema.single_turn.config import PLAN, SOLUTION, PlanForm, Process
from marsrl_verl.algos.rema.single_turn.evaluation import PlanAndSolve
from marsrl_verl.algos.rema.single_turn.filtering import Phases, PhaseSchedule
from marsrl_verl.algos.rema.single_turn.prompts import MathPlanPrompts, PlanPrompts
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Traits, View, fitting_prompts
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.prompts import NO_PROBLEM, PromptShape, Shown, no_text
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.schedule import StepView
from marsrl_verl.core.stage import Stage
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.rewards.extraction import references
from marsrl_verl.rewards.normal_form import same_answer

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
"""Sampling of a request whose agent decodes greedily."""
_SHORTEST_PLAN = "."


class ReMASingleTurn(Method):
    """Phases in turns: in the reasoning agent's, k solutions of each of some plans are compared; in the
    meta-thinking agent's, k plans of each problem, by the solutions that follow them.

    - A phase begins with an epoch that only counts (`filtering`): for the reasoning agent solutions of one
      greedy plan, for the meta-thinking agent plans with one greedy solution each.
    - A plan is followed where it came to its end and is not empty, or is a JSON action, and where the prompt
      that shows it is within the limit. One that is not earns 0 (a JSON plan that is none: the penalty).
    - With shared weights both agents are one policy; a phase trains its agent's responses alone.
    """

    Config = settings_of.Config
    Evaluation = settings_of.Evaluation
    Prompts = MathPlanPrompts
    Schedule = PhaseSchedule
    roles = AGENTS

    config: settings_of.Config
    prompts: PlanPrompts
    schedule: PhaseSchedule

    def __init__(self, config: settings_of.Config, tools: MethodTools) -> None:
        super().__init__(config, tools)
        self.same: rewards.Same = same_answer
        """Comparison of two answers for the consistency reward, true if they are equal."""
        if config.plan_reward is rewards.PlanRewardKind.CONSISTENCY and tools.settings is not None:
            self.same = rewards.AnswerEquality(tools.settings.reward[REASONING])

    @classmethod
    def stages(cls, config: settings_of.Config) -> tuple[Stage, ...]:
        """Plan and solution, or the solution alone, with the most that they hold for each problem of
        `data.train_batch_size`, also in epochs that only count."""
        trained = config.phase_roles
        most = max(config.group_size, config.filter.samples if config.filter.enabled else 0)
        if config.process is not Process.MAMRP:
            return (Stage(SOLUTION, REASONING, most, deferred_reward=True),)
        size, groups, solutions = most, most, config.solutions_per_plan
        if META_THINKING not in trained:
            # A problem with several plans stands for as many.
            size, groups, solutions = 1, 1, most
        return (
            Stage(
                PLAN,
                META_THINKING,
                size,
                rollout=json_actions.PROGRAM if config.plan_form is PlanForm.JSON else "single_call",
                trained=META_THINKING in trained,
                deferred_reward=True,
                next=(SOLUTION,),
            ),
            Stage(SOLUTION, REASONING, solutions, groups, trained=REASONING in trained, deferred_reward=True),
        )

    @classmethod
    def traits(cls, config: settings_of.Config) -> Traits:
        """JSON plans are decoded by a grammar."""
        silent = View(silent=frozenset({META_THINKING}))
        return Traits(grammar_roles=settings_of.grammar_roles(config), view=silent)

    @classmethod
    def active_roles(cls, config: settings_of.Config, evaluation: Any | None) -> tuple[str, ...]:
        """Returns both agents, or the only agent of the baselines."""
        return ROLES if config.process == Process.MAMRP else (REASONING,)

    @classmethod
    def opening_prompts(
        cls, config: settings_of.Config, prompts: PlanPrompts, problem: Problem
    ) -> dict[str, tuple[Message, ...]]:
        """Returns prompts by role: that of the only agent; of two agents that of the first, and the shortest
        one of the second.

        The reasoning agent may be shown more of a problem than the meta-thinking agent, such as the answers
        to be judged. If there is no room for any plan, no plan is to blame.
        """
        if config.process is Process.VRP:
            return {REASONING: prompts.direct(problem)}
        if config.process is Process.MRP:
            return {REASONING: prompts.planned(problem)}
        if config.plan_form is PlanForm.JSON:  # the action EMPTY has no instruction
            return {META_THINKING: prompts.action(problem), REASONING: prompts.solution(problem, "")}
        return {META_THINKING: prompts.plan(problem), REASONING: prompts.solution(problem, _SHORTEST_PLAN)}

    @classmethod
    def prompt_shapes(
        cls,
        config: settings_of.Config,
        prompts: PlanPrompts,
        problem: Problem = NO_PROBLEM,
        shown: Shown = no_text,
    ) -> tuple[PromptShape, ...]:
        """The reasoning agent is shown a plan, if there is another agent, and other texts of the rows."""
        more = tuple(prompts.row_texts(NO_PROBLEM))
        opening = cls.opening_prompts(config, prompts, problem)
        if config.process is not Process.MAMRP:
            return (PromptShape(REASONING, opening[REASONING], row_texts=more),)
        # With an instruction also where plans are actions: those that have one are longer.
        solution = prompts.solution(problem, shown("plan") or _SHORTEST_PLAN)
        return (
            PromptShape(META_THINKING, opening[META_THINKING]),
            PromptShape(REASONING, solution, {"plan": (META_THINKING,)}, row_texts=more),
        )

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: settings_of.Evaluation, prompts: PlanPrompts
    ) -> PlanAndSolve:
        """Returns the evaluation of plan and solution, or of the solution alone."""
        each, both = evaluation.solutions_per_plan, evaluation.both_orders
        return PlanAndSolve(config, prompts, both_orders=both, solutions=each)

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """Returns the shares of correct solutions, of plans that leak or can't be followed, and of the plans'
        actions."""
        return plans.role_figures(groups)

    @classmethod
    def outcome(cls, request: RolloutRequest, trajectory: Trajectory) -> tuple[str, None] | None:
        """Returns the action of a JSON plan."""
        action = trajectory.scored.info.get("action")
        return None if action is None else (str(action), None)

    @property
    def _phases(self) -> Phases:
        return self.schedule.phases

    # --- requests ------------------------------------------------------------------------------

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """Returns the requests of a problem's plans, or of its solutions without plans; none if one of the
        prompts that it begins with is too long."""
        chats, phases = fitting_prompts(self, problem), self._phases
        if not chats:
            return []
        first, samples = self.stages(self.config)[0], self.config.group_size
        if phases.filtering:
            samples = self.config.filter.samples
        if self.config.process is not Process.MAMRP:
            return [first.request(problem, chats[REASONING], step, n=samples)]
        greedy = phases.role == REASONING and phases.filtering
        if phases.role == REASONING:
            samples = 1 if greedy else self.config.plans_per_problem
        looks = self.config.leak_rule is rewards.LeakRule.VALUE
        inputs: dict[str, Any] = {LOOK_FOR_VALUES: True} if looks else {}
        if self.config.plan_form is PlanForm.JSON:
            inputs = {"form": "json", **inputs}
        sampling = {META_THINKING: GREEDY} if greedy else {}
        chat = chats[META_THINKING]
        return [first.request(problem, chat, step, n=samples, inputs=inputs, sampling=sampling)]

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest]:
        """Returns requests of solutions of every plan that can be followed; none of a plan that leaves no
        room in the prompt."""
        n, greedy = self._solutions()
        sampling, last = {REASONING: GREEDY} if greedy else {}, self.stages(self.config)[-1]
        found: list[RolloutRequest] = []
        for one in sorted((one for group in groups for one in group.trajectories), key=lambda t: t.number):
            plan = plans.instruction_of(one, self.config.plan_form)
            if plan is None:
                continue
            messages = self.prompts.solution(problem, plan)
            if self.tools.fits(REASONING, messages):
                source: dict[str, Any] = {"parent_id": one.trajectory_id, "inputs": {"plan": plan}}
                found.append(
                    last.request(problem, messages, step, one.number, n=n, sampling=sampling, **source)
                )
        return found

    def _solutions(self) -> tuple[int, bool]:
        """Returns the number of solutions of a plan in this epoch, and whether they are greedy."""
        if self._phases.role == REASONING:
            return (self.config.filter.samples if self._phases.filtering else self.config.group_size), False
        n = 1 if self._phases.filtering else self.config.solutions_per_plan
        return n, n == 1

    # --- rewards -------------------------------------------------------------------------------

    def deferred_rewards(self, groups: Sequence[Group]) -> dict[str, RewardResult]:
        """Returns the rewards of solutions by their answers, and of plans by the solutions that follow
        them."""
        found: dict[str, RewardResult] = {}
        by_plan: dict[str, list[RewardResult]] = {}
        """Rewards of each plan's comparable solutions."""
        values, has_answer = self.config.solution_values, self.prompts.has_answer
        for group in (one for one in groups if one.request.stage == SOLUTION):
            plan = group.request.parent_id
            followed = [] if plan is None else by_plan.setdefault(plan, [])
            for one in group.trajectories:
                found[one.trajectory_id] = rewards.solution_reward(one, values, has_answer)
                if one.comparable:
                    followed.append(found[one.trajectory_id])
        consistent = self._consistencies(groups, {plan: some for plan, some in by_plan.items() if some})
        for one in (one for group in groups if group.request.stage == PLAN for one in group.trajectories):
            name = one.trajectory_id
            found[name] = self._plan_reward(one, by_plan.get(name), consistent.get(name))
        return found

    def _consistencies(
        self, groups: Sequence[Group], by_plan: Mapping[str, list[RewardResult]]
    ) -> dict[str, float]:
        """Returns the consistencies by plan, if plans are rewarded by them."""
        if self.config.plan_reward is not rewards.PlanRewardKind.CONSISTENCY or not by_plan:
            return {}
        answers = [
            [(rewards.definite_answer(one), bool(one.info["correct"])) for one in followed]
            for followed in by_plan.values()
        ]
        accepted = references(groups[0].request.problem.ground_truth)
        values = rewards.consistencies(answers, self.same, one_reference=len(accepted) == 1)
        return dict(zip(by_plan, values, strict=True))

    def _plan_reward(
        self, one: Trajectory, followed: Sequence[RewardResult] | None, consistent: float | None
    ) -> RewardResult:
        """Returns a plan's reward; `followed`: rewards of its comparable solutions (None: it has no solutions
        at all); `consistent`: its value in place of their correctness."""
        before = one.scored
        if not one.comparable:
            return before
        notes = plans.plan_notes(one, self.config.plan_form, self.prompts.has_answer)
        info = {**before.info, **notes, "followed": followed is not None}
        if followed == []:
            return RewardResult(0.0, info, "no solution of the plan was graded", graded=False)
        correct = [bool(reward.info["correct"]) for reward in followed or ()]
        value = 0.0
        if correct:
            info["correctness"] = value = sum(correct) / len(correct)
            value = value if consistent is None else consistent
        if info.get("action") == json_actions.INVALID or rewards.punished(self.config.leak_rule, info):
            value = rewards.penalised(value, self.config.penalty, self.config.penalty_mode)
        return RewardResult(value, info, before.error)

    # --- observation ---------------------------------------------------------------------------

    def observe_problem(self, groups: Sequence[Group]) -> None:
        """Counts successes in an epoch that does so."""
        if not (self._phases.filtering and groups):
            return
        successes, samples = plans.successes_of(groups, self._phases.role)
        self.schedule.filter.note(plans.key_of(groups[0].request.problem), successes, samples)

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Returns the phase, and the counts of its first epoch so far."""
        return {
            "phase/iteration": float(self._phases.iteration),
            "phase/episode": float(self._phases.episode),
            "phase/trains_plans": float(self._phases.role == META_THINKING),
            **(self.schedule.filter.metrics() if self.config.filter.enabled else {}),
        }

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """Returns what was found in a plan or a solution, and the difficulty of its problem."""
        info, level = trajectory.scored.info, plans.difficulty_of(request.problem)
        if request.stage == PLAN:
            names = ("leak", "value_leak", "leaked", "followed", "correctness", "action")
            trained = self._phases.role == META_THINKING and not self._phases.filtering
            return {"level": level, "pass_trains_plans": trained, **{name: info.get(name) for name in names}}
        return {"level": level, "answer": info.get("answer"), "plan": request.inputs.get("plan")}
