"""AttnRL: a tree of responses that branches where attention says the reasoning turns (arXiv 2509.26628).

Stage `initial`: G responses from the prompt. Stage `continuation`: from every branch point of the expanded
ones, some more. A problem's responses and continuations are one tree, trained together, each segment with
the tree's advantage. In pipelined mode a step has one generation round, with new problems' first responses
beside the continuations of the step before: the paper's one-step off-policy training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from marsrl_verl.algos.attnrl import checks as rules
from marsrl_verl.algos.attnrl import config as settings_of
from marsrl_verl.algos.attnrl.adaptive_sampling import (
    BatchController,
    ProblemStatistics,
    RunningMean,
    choose_trees,
    in_filter,
    passes_filter,
    trees_to_expand,
)
from marsrl_verl.algos.attnrl.branch_points import (
    BY_TOKEN,
    BranchCriterion,
    BranchPoint,
)
from marsrl_verl.algos.attnrl.config import SOLVER
from marsrl_verl.algos.attnrl.problem_count import ProblemCount, batch_controller
from marsrl_verl.algos.attnrl.response_trees import (
    AdvantageRule,
    by_problem,
    problem_tree,
    tree_metrics,
    treerl_advantages,
)
from marsrl_verl.algos.attnrl.responses import FirstResponses
from marsrl_verl.algos.attnrl.step_cutter import StepCutter, step_cutter
from marsrl_verl.algos.attnrl.tree_figures import TreeFigures
from marsrl_verl.algos.base import BaseMethod, PromptLimits
from marsrl_verl.algos.mastered_tokens import MasteredTokens
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import (
    MethodTools,
    Probe,
    RunView,
    Stage,
    StagePlan,
    StepView,
    Unit,
)
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.rows import RowRef, Rows
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import RECORDED_LOG_PROBS
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.core.tree import tree_advantages
from marsrl_verl.settings.choices import OffPolicyMode
from marsrl_verl.settings.issues import ConfigIssue

INITIAL = "initial"
CONTINUATION = "continuation"
DELTA = Prompts.step_distance
"""Least distance in steps from which attention counts (arXiv 2509.26628, eq. 6)."""


class AttnRL(BaseMethod):
    """Initial responses, then continuations from their branch points.

    Args:
        prompts: the Solver's wording.
        cutter: cuts responses into steps.
        config: its settings; None: those of `settings`, the others at their defaults.
        seed: all choices derive from it and from ids.
        controller: adapts the number of problems; None: it is the configured one.
        limits: longest prompts; None: prompts of every length are asked.
        record_log_probs: whether the loss takes the trainer's log-probabilities of the first responses under
            the weights that sampled them.
    """

    Config = settings_of.Config
    roles = (SOLVER,)
    answering_roles = (SOLVER,)
    records_log_probs = True
    group_relative = False
    fused_kernels = False
    preset_values: ClassVar[Mapping[str, float]] = {
        "actor_rollout_ref.actor.clip_ratio_low": 0.2,
        "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    }
    resumable = frozenset({"fci_backend", "mastered_tokens"})
    unit = Unit.PROBLEM

    def __init__(
        self,
        prompts: Prompts,
        cutter: StepCutter,
        config: settings_of.Config | None = None,
        *,
        seed: int,
        controller: BatchController | None = None,
        limits: PromptLimits | None = None,
        record_log_probs: bool = True,
        **settings: Any,
    ) -> None:
        self.config = settings_of.Config(**settings) if config is None else config
        mastered = MasteredTokens.from_config(self.config.mastered_tokens)
        super().__init__(prompts, self.config.group_size, limits, mastered)
        self.seed = seed
        self.responses = FirstResponses(
            cutter,
            self.config,
            seed=seed,
            delta=prompts.step_distance if self.config.delta is None else self.config.delta,
            aggregation=self.config.fci_aggregation,
        )
        self.mean = RunningMean(self.config.filter_mean, self.config.filter_decay)
        self.problem_count = ProblemCount(controller)
        self.stages = (Stage(INITIAL, SOLVER, next=(CONTINUATION,)), Stage(CONTINUATION, SOLVER))
        self._figures = TreeFigures()
        self.record_log_probs = record_log_probs

    @classmethod
    def from_settings(cls, settings: Any, tools: MethodTools) -> AttnRL:
        """Build the method from the `marsrl` node."""
        config: settings_of.Config = settings.algo
        return cls(
            tools.prompts,
            step_cutter(tools.tokenizer, config.step_ends),
            config,
            seed=settings.run.seed,
            controller=batch_controller(config, tools.problems),
            limits=cls.prompt_limits(settings, tools),
            record_log_probs=settings.off_policy.mode is OffPolicyMode.RECORDED,
        )

    @classmethod
    def plan(cls, config: settings_of.Config) -> tuple[StagePlan, ...]:
        """1 + G N groups: N branch points in each of G responses."""
        branches = config.group_size * config.num_branch_points
        return (
            StagePlan(INITIAL, SOLVER, 1, True, config.group_size),
            StagePlan(CONTINUATION, SOLVER, branches, True, config.num_continuations),
        )

    @classmethod
    def most_problems(cls, config: settings_of.Config, configured: int) -> int:
        """More than `configured` where their number is adapted."""
        return config.most_problems(configured)

    @classmethod
    def checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `checks.checks`."""
        return rules.checks(run)

    @classmethod
    def file_checks(cls, run: RunView) -> list[ConfigIssue]:
        """See `checks.file_checks`."""
        return rules.file_checks(run)

    @classmethod
    def plan_lines(cls, run: RunView) -> list[str]:
        """See `checks.plan_lines`."""
        return rules.plan_lines(run)

    # --- requests -------------------------------------------------------------------------------

    def probes(self, stage: str) -> tuple[Probe, ...]:
        """Of first responses: their log-probabilities under the weights that sampled them, their FCI and
        their entropies, as far as branch points, filter or loss need them."""
        entropies = self.record_log_probs or self.config.criterion is BranchCriterion.ENTROPY
        influence = self.config.needs_influence
        if stage != INITIAL or not (entropies or influence):
            return ()
        if not influence:
            return (Probe(INITIAL, entropies=entropies),)
        return (self.responses.influence_probe(INITIAL, str(self.config.fci_backend), entropies=entropies),)

    def observe_stage(self, stage: str, problems: Sequence[Sequence[Group]], step: int) -> None:
        """Bring the filter's mean up to date with all problems of the step."""
        if stage != INITIAL:
            return
        statistics = [self._statistics(groups[0]) for groups in problems if groups[0].comparable]
        self.mean.update(sorted(one.influence for one in statistics if in_filter(one, self.config.filter)))

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest] | None:
        """The continuations of a problem that passes the filter. A problem that does not gets no further
        requests, since its first responses are a tree too; it is rejected (None) only if all of them are
        right."""
        group = groups[0]
        if not group.comparable:
            return []
        statistics = self._statistics(group)
        self._figures.statistics.append(statistics)
        if not passes_filter(statistics, self.config.filter, self.mean.value):
            self._figures.filtered.append(statistics)
            return None if statistics.all_correct else []
        rng = derive_generator(self.seed, "trees", problem.problem_id)
        number = trees_to_expand(statistics, self.config.expansion)
        members = group.trajectories
        points = {at: self.responses.points(one) for at, one in enumerate(members) if one.comparable}
        able = [at for at, found in points.items() if found]
        right = [is_correct(members[at].value) for at in able]
        requests: list[RolloutRequest] = []
        for place in choose_trees(right, number, self.config.tree_choice, rng):
            at = able[place]
            self._figures.branched(problem.problem_id, points[at], members[at].tokens)
            if self.config.criterion not in BY_TOKEN:
                self._figures.compared(points[at] == self.responses.earliest_points(members[at]))
            requests += [self._continuation(group, at, point, step) for point in points[at]]
        return requests

    def _continuation(self, group: Group, at: int, point: BranchPoint, step: int) -> RolloutRequest:
        parent, problem = group.trajectories[at], group.request.problem
        return RolloutRequest(
            group_id=f"{problem.problem_id}/{CONTINUATION}/{at:03d}-{point.token:06d}",
            problem=problem,
            stage=CONTINUATION,
            role=SOLVER,
            messages=group.request.messages,
            n=self.config.num_continuations * point.times,
            parent_id=parent.trajectory_id,
            created_step=step,
            prefix=parent.sequence.truncate(point.token).keeping(RECORDED_LOG_PROBS),
        )

    def _statistics(self, group: Group) -> ProblemStatistics:
        means = []
        leaves = group.comparable
        if self.config.needs_influence:
            for one in leaves:
                influence = self.responses.aggregated(one) if one.tokens else ()
                means.append(float(np.mean(influence)) if influence else 0.0)
        correct = sum(is_correct(one.value) for one in leaves)
        mean = float(np.mean(means)) if means else 0.0
        return ProblemStatistics(correct, len(leaves), mean, sum(not value for value in means))

    def observe_problem(self, groups: Sequence[Group]) -> None:
        """Count how a whole tree did."""
        self._figures.ended(groups, trains=self.trains(groups))

    # --- training ------------------------------------------------------------------------------

    def trains(self, groups: Sequence[Group]) -> bool:
        """Whether some leaf enters the loss: their rewards are not all equal, else every advantage is 0, and
        there are others than unexpanded responses where these are dropped."""
        included = self.config.keep_unbranched or any(group.request.stage == CONTINUATION for group in groups)
        return included and len({reward for group in groups for reward in group.rewards}) > 1

    def select(self, groups: Sequence[Group], step: int) -> list[RowRef]:
        """The leaves with tokens; without first responses that were not expanded, where these are dropped."""
        branched = {group.request.parent_id for group in groups}
        return [
            RowRef(at, place)
            for at, group in enumerate(groups)
            for place, one in enumerate(group.trajectories)
            if one.comparable and one.tokens
            if self.config.keep_unbranched or group.request.stage != INITIAL or one.trajectory_id in branched
        ]

    def advantages(self, rows: Rows) -> NDArray[np.float32]:
        """The tree's advantages, segment by segment (arXiv 2509.26628, eq. 3)."""
        rule = tree_advantages if self.config.advantage_rule is AdvantageRule.ATTNRL else treerl_advantages
        segments: dict[str, list[tuple[int, float]]] = {}
        for groups in by_problem(rows.groups).values():
            tree, members = problem_tree(groups)
            by_node = rule(tree)
            for at, one in enumerate(members):
                segments[one.trajectory_id] = [
                    (end, float(by_node[node])) for end, node in tree.segments_of(at)
                ]
        found = np.zeros(rows.tokens, dtype=np.float32)
        for row in range(len(rows)):
            start = first = int(rows.offsets[row])
            for end, advantage in segments[rows.trajectory(row).trajectory_id]:
                found[start : first + end] = advantage
                start = first + end
        return found

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """The answer, and the steps of first responses with their influence."""
        found: dict[str, Any] = {"answer": trajectory.scored.info.get("answer")}
        if request.prefix is None and trajectory.sequences:
            influence = self.responses.influence(trajectory)
            found["steps"] = list(self.responses.steps(trajectory).ends)
            found["influence"] = None if influence is None else list(influence)
        return found

    # --- state and metrics --------------------------------------------------------------------

    def problems_per_step(self, configured: int) -> int:
        """B_m where it is adapted (eq. 10)."""
        return self.problem_count.number(configured)

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Adapt the number of problems; the step's figures of trees, branching and filter."""
        figures, self._figures = self._figures, TreeFigures()
        self.responses.forget()
        figures_of = figures.metrics(influence=self.config.needs_influence)
        return tree_metrics(view.rows.groups) | figures_of | self.problem_count.observe_step(view)

    def state_dict(self) -> dict[str, Any]:
        """The filter's mean and the controller."""
        return {"mean": self.mean.state_dict(), **self.problem_count.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a saved state."""
        self.mean.load_state_dict(state["mean"])
        self.problem_count.load_state_dict(state)
