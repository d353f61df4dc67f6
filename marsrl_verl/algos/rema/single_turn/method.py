"""ReMA in a single turn: a plan, then a solution that follows it; the two agents are trained in turns (arXiv
2503.09501, §3.2.1, alg. 1), and so are the baselines of one agent, VRP and MRP, on the same stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.base import BaseMethod, PromptLimits
from marsrl_verl.algos.estimator import estimated_advantages, estimated_rows, has_contrast
from marsrl_verl.algos.mastered_tokens import MasteredTokens
from marsrl_verl.algos.rema import json_actions
from marsrl_verl.algos.rema.leak import LOOK_FOR_VALUES
from marsrl_verl.algos.rema.prompts import META_THINKING, REASONING, ROLES
from marsrl_verl.algos.rema.single_turn import config as settings_of
from marsrl_verl.algos.rema.single_turn import openings
from marsrl_verl.algos.rema.single_turn.config import PLAN, SOLUTION, PlanForm, Process
from marsrl_verl.algos.rema.single_turn.evaluation import PlanAndSolve
from marsrl_verl.algos.rema.single_turn.filtering import Phases, SuccessFilter
from marsrl_verl.algos.rema.single_turn.plans import (
    difficulty_of,
    instruction_of,
    key_of,
    plan_notes,
    role_figures,
    successes_of,
)
from marsrl_verl.algos.rema.single_turn.prompts import PlanPrompts
from marsrl_verl.algos.rema.single_turn.rewards import (
    AnswerEquality,
    LeakRule,
    PlanRewardKind,
    Same,
    SolutionValues,
    consistencies,
    definite_answer,
    mean_correctness,
    penalised,
    punished,
    solution_reward,
)
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import MethodTools, Passes, RunView, Stage, StagePlan, StepView, Unit
from marsrl_verl.core.prompts import PromptShape
from marsrl_verl.core.request import Message, Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.trajectory import RewardResult, Trajectory
from marsrl_verl.rewards.extraction import references
from marsrl_verl.rewards.normal_form import same_answer
from marsrl_verl.settings.issues import ConfigIssue

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
"""Sampling of a request whose agent decodes greedily."""


class ReMASingleTurn(BaseMethod):
    """Phases in turns: in the reasoning agent's, k solutions of each of some plans are compared; in the
    meta-thinking agent's, k plans of each problem, by the solutions that follow them.

    - A phase begins with a pass that only counts (`filtering`): for the reasoning agent solutions of one
      greedy plan, for the meta-thinking agent plans with one greedy solution each.
    - A plan is followed where it came to its end and is not empty, or is a JSON action, and where the prompt
      that shows it is within the limit. One that is not earns 0 (a JSON plan that is none: the penalty).
    - With shared weights both agents are one policy; a phase trains its agent's responses alone.
    """

    Config = settings_of.Config
    Evaluation = settings_of.Evaluation
    Prompts = PlanPrompts
    default_prompts = "marsrl_verl.algos.rema.single_turn.prompts:MathPlanPrompts"
    roles = ROLES
    answering_roles = (REASONING,)
    text_roles = frozenset(ROLES)
    kl_in_reward = True
    unit = Unit.PROBLEM
    passes = Passes.DRAINED
    late_stages = frozenset({PLAN, SOLUTION})
    rollouts = ("single_call", json_actions.PROGRAM)
    preset_values: ClassVar[Mapping[str, float]] = {"algorithm.kl_ctrl.kl_coef": 0.01}
    rewards: ClassVar[Mapping[str, str]] = {META_THINKING: "marsrl_verl.algos.rema.leak:PlanReward"}
    resumable = frozenset({"estimator", "gamma", "normalize_std", "mastered_tokens", "solution_values"})

    prompts: PlanPrompts

    def __init__(
        self,
        prompts: PlanPrompts,
        config: settings_of.Config | None = None,
        *,
        policies: Mapping[str, str] | None = None,
        limits: PromptLimits | None = None,
        same: Same = same_answer,
    ) -> None:
        """Build the method.

        Args:
            prompts: the agents' wording.
            config: its settings; None: the defaults.
            policies: role -> the name of its policy; None: one for both.
            limits: longest prompts; None: prompts of every length are asked.
            same: whether two answers are one, for the consistency reward.
        """
        self.config = config = settings_of.Config() if config is None else config
        mastered = MasteredTokens.from_config(config.mastered_tokens)
        super().__init__(prompts, config.group_size, limits, mastered)
        self.policies, self.same = dict(policies or {}), same
        self.values = SolutionValues(**config.solution_values.model_dump())
        self.stages = (Stage(SOLUTION, REASONING),)
        if config.process is Process.MAMRP:
            self.stages = (Stage(PLAN, META_THINKING, next=(SOLUTION,)), *self.stages)
        self.phases = Phases(config.phase_roles, config.episodes, config.filter.enabled, config.iterations)
        self.filter = SuccessFilter(config.filter.lowest, config.filter.highest)

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> ReMASingleTurn:
        """Build the method from the `marsrl` node."""
        consistent = settings.algo.plan_reward is PlanRewardKind.CONSISTENCY
        return cls(
            tools.prompts,
            settings.algo,
            policies={role: settings.policy_of(role) for role in cls.roles},
            limits=cls.prompt_limits(settings, tools),
            same=AnswerEquality(settings.reward[REASONING]) if consistent else same_answer,
        )

    @classmethod
    def plan(cls, config: settings_of.Config) -> tuple[StagePlan, ...]:
        """Plan and solution, or the solution alone."""
        return settings_of.stage_plans(config)

    @classmethod
    def most_trained(cls, config: settings_of.Config) -> int:
        """A step trains one agent, and passes that count successes, with more responses, train none."""
        return config.group_size

    @classmethod
    def active_roles(cls, config: settings_of.Config, evaluation: Any | None) -> tuple[str, ...]:
        """The baselines ask one agent alone."""
        return ROLES if config.process == Process.MAMRP else (REASONING,)

    @classmethod
    def opening_prompts(
        cls, config: settings_of.Config, prompts: PlanPrompts, problem: Problem
    ) -> dict[str, tuple[Message, ...]]:
        """Of two agents the first one's prompt, and the second one's without a plan worth the name."""
        return openings.opening_prompts(config, prompts, problem)

    @classmethod
    def prompt_shapes(cls, config: settings_of.Config, prompts: PlanPrompts) -> tuple[PromptShape, ...]:
        """The reasoning agent is shown a plan."""
        return openings.prompt_shapes(config, prompts)

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `single_turn.config.checks`."""
        return settings_of.checks(run)

    @classmethod
    def grammar_roles(cls, config: settings_of.Config) -> frozenset[str]:
        """See `config.grammar_roles`."""
        return settings_of.grammar_roles(config)

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """The course of the phases."""
        config: settings_of.Config = run.settings.algo
        one = "a pass that counts successes, then " if config.filter.enabled else ""
        phases = ", then ".join(config.phase_roles)
        times = "until the limit of steps" if config.iterations is None else f"{config.iterations} time(s)"
        lines = [
            f"phases: {phases}; each {one}{config.episodes} training pass(es); {times}",
            f"trained: one agent at a time, at most {config.group_size} responses for each new problem",
        ]
        if len(config.phase_roles) > 1 and run.settings.policy_of(REASONING) == run.settings.policy_of(
            META_THINKING
        ):
            lines.append(
                "! both agents have the same weights: each phase changes the other agent too; the paper has "
                "policies=model_per_role"
            )
        return lines

    @classmethod
    def most_steps(cls, config: settings_of.Config, problems: int, per_step: int) -> int | None:
        """The steps of all phases if each pass asks all problems; most training passes ask fewer."""
        if config.iterations is None:
            return None
        counting = -(-problems // per_step) if config.filter.enabled else 0
        asked = {role: _problems_per_step(config, role, per_step) for role in config.phase_roles}
        return config.iterations * sum(
            counting + config.episodes * -(-problems // one) for one in asked.values()
        )

    @classmethod
    def evaluation(
        cls, config: settings_of.Config, evaluation: settings_of.Evaluation, prompts: PlanPrompts
    ) -> PlanAndSolve:
        """Plan and solution, or the solution alone."""
        return PlanAndSolve(config, prompts, both_orders=evaluation.both_orders)

    @classmethod
    def evaluation_calls(
        cls, config: settings_of.Config, evaluation: settings_of.Evaluation
    ) -> Mapping[str, int]:
        """A plan, and a solution for each order of the answers."""
        orders = 2 if evaluation.both_orders else 1
        return {**({META_THINKING: 1} if config.process is Process.MAMRP else {}), REASONING: orders}

    @classmethod
    def group_metrics(cls, groups: Sequence[Group]) -> dict[str, float]:
        """Correct solutions; plans that leak, that nobody could follow, and their actions."""
        return role_figures(groups)

    @classmethod
    def outcome(cls, request: RolloutRequest, trajectory: Trajectory) -> tuple[str, None] | None:
        """The action of a JSON plan."""
        action = trajectory.scored.info.get("action")
        return None if action is None else (str(action), None)

    # --- passes --------------------------------------------------------------------------------

    def admits(self, problem: Problem) -> bool:
        """All problems where successes are counted, then those that are solved now and then."""
        if self.phases.left is not None and self.phases.left < 0:
            return False
        return not self.phases.filtered or self.phases.filtering or self.filter.keeps(key_of(problem))

    def pass_ended(self, step: int) -> None:
        """On to the next pass; a new phase counts anew."""
        if self.phases.next_pass():
            self.filter.forget()

    def passes_left(self) -> int | None:
        """Those of the phases that are left."""
        return None if self.phases.left is None else max(0, self.phases.left)

    def problems_per_step(self, configured: int) -> int:
        """Fewer where each becomes several prompts of the reasoning agent."""
        if self.phases.filtering:
            return configured
        return _problems_per_step(self.config, self.role, configured)

    @property
    def role(self) -> str:
        """Who is trained in this phase."""
        return self.phases.role

    # --- requests ------------------------------------------------------------------------------

    def first_requests(self, problem: Problem, step: int) -> list[RolloutRequest]:
        """The plans of a problem, or its solutions where nobody plans; none where one of the prompts that it
        begins with is too long."""
        prompts = self.opening_prompts(self.config, self.prompts, problem)
        if not all(self.fits(role, messages) for role, messages in prompts.items()):
            return []
        samples = self.config.filter.samples if self.phases.filtering else self.group_size
        if self.config.process is not Process.MAMRP:
            return [self._request(problem, SOLUTION, REASONING, prompts[REASONING], samples, step)]
        greedy = self.role == REASONING and self.phases.filtering
        if self.role == REASONING:
            samples = 1 if greedy else self.config.plans_per_problem
        inputs: dict[str, Any] = {LOOK_FOR_VALUES: True} if self.config.leak_rule is LeakRule.VALUE else {}
        more: dict[str, Any] = {"inputs": inputs}
        if self.config.plan_form is PlanForm.JSON:
            more = {"rollout": json_actions.PROGRAM, "inputs": {"form": "json", **inputs}}
        messages = prompts[META_THINKING]
        return [self._request(problem, PLAN, META_THINKING, messages, samples, step, greedy=greedy, **more)]

    def _request(
        self,
        problem: Problem,
        stage: str,
        role: str,
        messages: tuple[Message, ...],
        n: int,
        step: int,
        *,
        slot: int = 0,
        greedy: bool = False,
        **more: Any,
    ) -> RolloutRequest:
        return RolloutRequest(
            f"{problem.problem_id}/{stage}/{slot}",
            problem,
            stage,
            role,
            messages,
            n,
            sampling={role: GREEDY} if greedy else {},
            created_step=step,
            **more,
        )

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest]:
        """Solutions of every plan that can be followed; none of a plan that leaves no room in the prompt."""
        n, greedy = self._solutions()
        found: list[RolloutRequest] = []
        for one in sorted((one for group in groups for one in group.trajectories), key=lambda t: t.number):
            plan = instruction_of(one, self.config.plan_form)
            if plan is None:
                continue
            messages = self.prompts.solution(problem, plan)
            if self.fits(REASONING, messages):
                asked: dict[str, Any] = {"slot": one.number, "greedy": greedy}
                source: dict[str, Any] = {"parent_id": one.trajectory_id, "inputs": {"plan": plan}}
                found.append(
                    self._request(problem, SOLUTION, REASONING, messages, n, step, **asked, **source)
                )
        return found

    def _solutions(self) -> tuple[int, bool]:
        """How many solutions a plan has in this pass, and whether greedy."""
        if self.role == REASONING:
            return (self.config.filter.samples if self.phases.filtering else self.group_size), False
        n = 1 if self.phases.filtering else self.config.solutions_per_plan
        return n, n == 1

    # --- rewards -------------------------------------------------------------------------------

    def late_rewards(self, groups: Sequence[Group]) -> dict[str, RewardResult]:
        """What solutions earn by their answers, and plans by the solutions that follow them."""
        found: dict[str, RewardResult] = {}
        by_plan: dict[str, list[Trajectory]] = {}
        for group in (one for one in groups if one.request.stage == SOLUTION):
            for one in group.trajectories:
                found[one.trajectory_id] = solution_reward(one, self.values, self.prompts.has_answer)
                if one.comparable and group.request.parent_id is not None:
                    by_plan.setdefault(group.request.parent_id, []).append(one)
        consistent = self._consistencies(groups, by_plan, found)
        followed_ids = {group.request.parent_id for group in groups if group.request.stage == SOLUTION}
        for group in (one for one in groups if one.request.stage == PLAN):
            for one in group.trajectories:
                followed = [(each, found[each.trajectory_id]) for each in by_plan.get(one.trajectory_id, [])]
                value = consistent.get(one.trajectory_id)
                was_followed = one.trajectory_id in followed_ids
                found[one.trajectory_id] = self._plan_reward(one, followed, was_followed, value)
        return found

    def _consistencies(
        self,
        groups: Sequence[Group],
        by_plan: Mapping[str, list[Trajectory]],
        found: Mapping[str, RewardResult],
    ) -> dict[str, float]:
        """By plan, where that is what plans earn."""
        if self.config.plan_reward is not PlanRewardKind.CONSISTENCY or not by_plan:
            return {}
        rewards = {plan: [found[one.trajectory_id] for one in members] for plan, members in by_plan.items()}
        answers = [
            [(definite_answer(one), bool(one.info["correct"])) for one in members]
            for members in rewards.values()
        ]
        accepted = references(groups[0].request.problem.ground_truth)
        values = consistencies(answers, self.same, one_reference=len(accepted) == 1)
        return dict(zip(rewards, values, strict=True))

    def _plan_reward(
        self,
        one: Trajectory,
        followed: Sequence[tuple[Trajectory, RewardResult]],
        was_followed: bool,
        consistent: float | None,
    ) -> RewardResult:
        """A plan's; `followed`: its solutions that say something, with their rewards; `consistent`: what it
        earns in place of their correctness."""
        before = one.scored
        if not one.comparable:
            return before
        notes = plan_notes(one, self.config.plan_form, self.prompts.has_answer)
        info = {**before.info, **notes, "followed": was_followed}
        if was_followed and not followed:
            return RewardResult(0.0, info, "no solution of the plan was graded", graded=False)
        correct = [bool(reward.info["correct"]) for _, reward in followed]
        value = 0.0
        if correct:
            info["correctness"] = value = mean_correctness(correct)
            value = value if consistent is None else consistent
        if info.get("action") == json_actions.INVALID or punished(self.config.leak_rule, info):
            value = penalised(value, self.config.penalty, self.config.penalty_mode)
        return RewardResult(value, info, before.error)

    # --- training ------------------------------------------------------------------------------

    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether the phase's agent has anything to learn from a problem."""
        return not self.phases.filtering and has_contrast(self.config, self._own(groups))

    def _own(self, groups: Sequence[Group]) -> list[Group]:
        return [group for group in groups if group.request.role == self.role]

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """The responses of the phase's agent to which the estimator gives an advantage."""
        rows = estimated_rows(self.config, groups)
        return [ref for ref in rows if groups[ref.group].request.role == self.role]

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The estimator's."""
        return estimated_advantages(self.config, rows)

    def train_policies(self, step: int, trained: frozenset[str]) -> frozenset[str]:
        """The policy of the phase's agent; none while successes are counted."""
        if self.phases.filtering:
            return frozenset()
        name = self.policies.get(self.role)
        return trained if name is None else trained & {name}

    # --- observation ---------------------------------------------------------------------------

    def observe_problem(self, groups: Sequence[Group]) -> None:
        """Count successes in a pass that does."""
        if not (self.phases.filtering and groups):
            return
        successes, samples = successes_of(groups, self.role)
        self.filter.note(key_of(groups[0].request.problem), successes, samples)

    def observe_step(self, view: StepView) -> dict[str, float]:
        """The phase, and what its first pass has counted so far."""
        return {
            "phase/iteration": float(self.phases.iteration),
            "phase/episode": float(self.phases.episode),
            "phase/trains_plans": float(self.role == META_THINKING),
            **(self.filter.metrics() if self.phases.filtered else {}),
        }

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """What was found in a plan or a solution, and how hard its problem is."""
        info, level = trajectory.scored.info, difficulty_of(request.problem)
        if request.stage == PLAN:
            names = ("leak", "value_leak", "leaked", "followed", "correctness", "action")
            trained = self.role == META_THINKING and not self.phases.filtering
            return {"level": level, "pass_trains_plans": trained, **{name: info.get(name) for name in names}}
        return {"level": level, "answer": info.get("answer"), "plan": request.inputs.get("plan")}

    def state_dict(self) -> dict[str, Any]:
        """The pass, and what was counted in its phase."""
        return {"pass": self.phases.number, "counts": self.filter.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the same pass."""
        self.phases.number = int(state["pass"])
        self.filter.load_state_dict(state["counts"])


def _problems_per_step(config: settings_of.Config, role: str, configured: int) -> int:
    """Problems of a training step: fewer if each becomes several prompts of the agent that is trained."""
    if config.process is not Process.MAMRP or role != REASONING:
        return configured
    return max(1, configured // config.plans_per_problem)
