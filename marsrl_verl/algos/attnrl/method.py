"""AttnRL: a tree of responses that branches where attention says the reasoning turns (arXiv 2509.26628).

Stage `initial`: G responses from the prompt. Stage `continuation`: from every branch point of the expanded
ones, some more. A problem's responses and continuations are one tree, trained together, each segment with
the tree's advantage. In pipelined mode a step has one generation round, with new problems' first responses
beside the continuations of the step before: the paper's one-step off-policy training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

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
from marsrl_verl.algos.attnrl.branch_points import BranchPoint
from marsrl_verl.algos.attnrl.branch_scores import ENTROPIES
from marsrl_verl.algos.attnrl.config import CONTINUATION, INITIAL, SOLVER
from marsrl_verl.algos.attnrl.credit import TreeCredit, tree_metrics
from marsrl_verl.algos.attnrl.responses import FirstResponses
from marsrl_verl.algos.attnrl.tree_figures import TreeFigures
from marsrl_verl.core.group import Group
from marsrl_verl.core.method import Method, Probe, Traits, View
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.prompts import Prompts
from marsrl_verl.core.request import Problem, RolloutRequest
from marsrl_verl.core.schedule import Schedule, StepView, Unit
from marsrl_verl.core.seeding import derive_generator
from marsrl_verl.core.sequence import RECORDED_LOG_PROBS
from marsrl_verl.core.stage import EndReason, Stage
from marsrl_verl.core.trajectory import Trajectory, is_correct
from marsrl_verl.settings.choices import OffPolicyMode

DELTA = Prompts.step_distance
"""Least distance in steps from which attention counts (arXiv 2509.26628, eq. 6)."""


@dataclass
class _Seen:
    """Counts of what steps trained since the controller was last told."""

    trained: int = 0
    """Trained samples."""
    completing_steps: int = 0
    """Steps in which a problem passed the last stage."""
    other_steps: int = 0
    """Other steps in which problems ended, all of them before the last stage."""


class TreeSchedule(Schedule):
    """Schedule in which a problem's tree is trained as a whole; an adapted number of problems follows the
    samples that steps train."""

    unit = Unit.PROBLEM

    def __init__(self, config: settings_of.Config, tools: MethodTools) -> None:
        super().__init__(config, tools)
        batch, problems = config.adaptive_batch, tools.problems
        self.controller: BatchController | None = None
        """Adapts the number of problems; None: it stays as it is."""
        if batch.enabled:
            self.controller = BatchController(
                target_samples=batch.target_samples or problems * config.samples_per_problem,
                problems=float(problems),
                least=batch.min_problems,
                most=config.max_problems(problems),
                smoothing=batch.smoothing,
            )
        self._seen = _Seen()

    @classmethod
    def max_problems(cls, config: settings_of.Config, configured: int) -> int:
        """Returns the most problems of a step, more than `configured` if their number is adapted."""
        return config.max_problems(configured)

    def problems_per_step(self, configured: int) -> int:
        """Returns the number of problems, B_m if it is adapted (eq. 10)."""
        return configured if self.controller is None else self.controller.number()

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Counts what a step trained; returns the next step's number of problems as a metric if it is
        adapted."""
        finished = any(end.reason is EndReason.FINISHED for end in view.ended)
        ended = any(end.reason is not EndReason.DROPPED for end in view.ended)
        self._seen.trained += len(view.rows)
        self._seen.completing_steps += finished
        self._seen.other_steps += ended and not finished
        self._tell_controller(view.deferred_groups)
        return {} if self.controller is None else {"attnrl/next_problems": self.controller.number()}

    def _tell_controller(self, deferred_groups: int) -> None:
        """Tells the controller the number of samples that a step trains, once it is known. A step in which no
        tree was completed (a pipeline that fills, a small budget) counts with the next one; after two there
        may never be one: no response can be branched, or none passes the filter. Trees that are deferred for
        a larger update count in the step that trains them, as those of several steps."""
        others = self._seen.other_steps
        steps = self._seen.completing_steps or (others if others > 1 else 0)
        if not steps or deferred_groups:
            return
        if self.controller is not None:
            self.controller.observe(self._seen.trained / steps)
        self._seen = _Seen()

    def state_dict(self) -> dict[str, Any]:
        """Returns the counts and the controller's state."""
        state: dict[str, Any] = asdict(self._seen)
        if self.controller is not None:
            state["controller"] = self.controller.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = _Seen(**{one.name: int(state[one.name]) for one in fields(_Seen)})
        if self.controller is not None and "controller" in state:
            self.controller.load_state_dict(state["controller"])


class AttnRL(Method):
    """Initial responses, then continuations from their branch points."""

    Config = settings_of.Config
    Credit = TreeCredit
    Schedule = TreeSchedule

    config: settings_of.Config
    schedule: TreeSchedule

    def __init__(self, config: settings_of.Config, tools: MethodTools) -> None:
        super().__init__(config, tools)
        self.responses = FirstResponses(config, tools)
        self.mean = RunningMean(config.filter_mean, config.filter_decay)
        self._figures = TreeFigures()
        off_policy = None if tools.settings is None else tools.settings.off_policy.mode
        self.stores_trainer_log_probs = off_policy in (None, OffPolicyMode.RECORDED)
        """If true, the loss takes the trainer's log-probabilities of the first responses under the weights
        that sampled them."""

    @classmethod
    def stages(cls, config: settings_of.Config) -> tuple[Stage, ...]:
        """Returns stages of 1 + G N groups: N branch points in each of G responses."""
        branches = config.group_size * config.num_branch_points
        return (
            Stage(INITIAL, SOLVER, config.group_size, next=(CONTINUATION,)),
            Stage(CONTINUATION, SOLVER, config.num_continuations, branches),
        )

    @classmethod
    def traits(cls, config: settings_of.Config) -> Traits:
        """The probe's pass gives log-probabilities of first responses, and FCI needs the attention."""
        view = View(columns={"influence": ("steps", "influence")})
        return Traits(stores_trainer_log_probs=True, fused_kernels=False, view=view)

    @classmethod
    def trial(cls, role: str, index: int, number: int) -> tuple[str, Mapping[str, Any]]:
        """Returns a response of several steps, so that there is somewhere to branch."""
        answer, info = super().trial(role, index, number)
        return f"One.\n\nTwo.\n\nThree.\n\nFour.\n\n{answer}", info

    # --- requests -------------------------------------------------------------------------------

    def probes(self, stage: str) -> tuple[Probe, ...]:
        """Returns the probe of first responses: of their log-probabilities under the weights that sampled
        them, their FCI and their entropies, as far as branch points, filter or loss need them."""
        entropies = self.stores_trainer_log_probs or ENTROPIES in self.config.needs
        influence = self.config.needs_influence
        if stage != INITIAL or not (entropies or influence):
            return ()
        if not influence:
            return (Probe(INITIAL, entropies=entropies),)
        return (self.responses.influence_probe(INITIAL, entropies=entropies),)

    def observe_stage(self, stage: str, problems: Sequence[Sequence[Group]], step: int) -> None:
        """Updates the filter's mean with all problems of the step."""
        if stage != INITIAL:
            return
        statistics = [self._statistics(groups[0]) for groups in problems if groups[0].comparable]
        self.mean.update(sorted(one.influence for one in statistics if in_filter(one, self.config.filter)))

    def next_requests(
        self, problem: Problem, stage: str, groups: list[Group], step: int
    ) -> list[RolloutRequest] | None:
        """Returns the continuations of a problem that passes the filter. A problem that does not gets no
        further requests, since its first responses are a tree too; it is rejected (None) only if all of them
        are right."""
        group = groups[0]
        if not group.comparable:
            return []
        statistics = self._statistics(group)
        self._figures.statistics.append(statistics)
        if not passes_filter(statistics, self.config.filter, self.mean.value):
            self._figures.filtered.append(statistics)
            return None if statistics.all_correct else []
        rng = derive_generator(self.tools.seed, "trees", problem.problem_id)
        number = trees_to_expand(statistics, self.config.expansion)
        members = group.trajectories
        points = {at: self.responses.points(one) for at, one in enumerate(members) if one.comparable}
        able = [at for at, found in points.items() if found]
        right = [is_correct(members[at].value) for at in able]
        requests: list[RolloutRequest] = []
        for place in choose_trees(right, number, self.config.tree_choice, rng):
            at = able[place]
            self._figures.branched(problem.problem_id, points[at], members[at].tokens)
            if self.responses.chooses_steps(members[at]):
                self._figures.compared(points[at] == self.responses.earliest_points(members[at]))
            requests += [self._continuation(group, at, point, step) for point in points[at]]
        return requests

    def _continuation(self, group: Group, at: int, point: BranchPoint, step: int) -> RolloutRequest:
        parent, stage = group.trajectories[at], self.stages(self.config)[1]
        return stage.request(
            group.request.problem,
            group.request.messages,
            step,
            f"{at:03d}-{point.token:06d}",
            n=stage.group_size * point.times,
            parent_id=parent.trajectory_id,
            prefix=parent.sequence.truncate(point.token).keeping(RECORDED_LOG_PROBS),
        )

    def _statistics(self, group: Group) -> ProblemStatistics:
        leaves, means = group.comparable, []
        if self.config.needs_influence:
            influences = [self.responses.aggregated(one) if one.tokens else () for one in leaves]
            means = [float(np.mean(one)) if one else 0.0 for one in influences]
        correct = sum(is_correct(one.value) for one in leaves)
        mean = float(np.mean(means)) if means else 0.0
        return ProblemStatistics(correct, len(leaves), mean, sum(not value for value in means))

    def observe_problem(self, groups: Sequence[Group]) -> None:
        """Counts the outcome of a whole tree."""
        self._figures.ended(groups, is_trainable=self.credit.is_trainable(groups))

    def record(self, request: RolloutRequest, trajectory: Trajectory) -> dict[str, Any]:
        """Returns the answer, and the steps of first responses with their influence."""
        found: dict[str, Any] = super().record(request, trajectory)
        if request.prefix is None and trajectory.sequences:
            influence = self.responses.influence(trajectory)
            found["steps"] = list(self.responses.steps(trajectory).ends)
            found["influence"] = None if influence is None else list(influence)
        return found

    # --- state and metrics --------------------------------------------------------------------

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Returns the step's figures of trees, branching and filter."""
        figures, self._figures = self._figures, TreeFigures()
        self.responses.forget()
        figures_of = figures.metrics(influence=self.config.needs_influence)
        return tree_metrics(view.rows.groups) | figures_of

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the filter's mean."""
        return {"mean": self.mean.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean.load_state_dict(state["mean"])
