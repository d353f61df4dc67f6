"""How many problems a step has, where that follows the samples that steps train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marsrl_verl.algos.attnrl import config as settings_of
from marsrl_verl.algos.attnrl.adaptive_sampling import BatchController
from marsrl_verl.core.method import StepView
from marsrl_verl.core.method_tools import MethodTools
from marsrl_verl.core.schedule import Schedule, Unit
from marsrl_verl.core.stage import EndReason


class TreeSchedule(Schedule):
    """A problem's tree is trained as a whole; where the number of problems is adapted, it follows what steps
    train."""

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
                most=config.most_problems(problems),
                smoothing=batch.smoothing,
            )
        self._seen = dict.fromkeys(("trained", "completing_steps", "other_steps"), 0)
        """Since the controller was last told: samples trained, steps in which a problem passed the last
        stage, and other steps in which problems ended, all of them before it."""

    @classmethod
    def most_problems(cls, config: settings_of.Config, configured: int) -> int:
        """More than `configured` where their number is adapted."""
        return config.most_problems(configured)

    def problems_per_step(self, configured: int) -> int:
        """B_m where it is adapted (eq. 10)."""
        return configured if self.controller is None else self.controller.number()

    def observe_step(self, view: StepView) -> dict[str, float]:
        """Sees what a step trained; the metric of the next one's number where it is adapted."""
        finished = any(end.reason is EndReason.FINISHED for end in view.ended)
        ended = any(end.reason is not EndReason.DROPPED for end in view.ended)
        self._seen["trained"] += len(view.rows)
        self._seen["completing_steps"] += finished
        self._seen["other_steps"] += ended and not finished
        self._tell_controller(view.deferred_groups)
        return {} if self.controller is None else {"attnrl/next_problems": self.controller.number()}

    def _tell_controller(self, deferred_groups: int) -> None:
        """Tell the controller how many samples a step trains, where the steps since it was told last say so.

        A step in which no tree was completed (a pipeline that fills, a small budget) says little; what it
        trained counts with the next one. After two of them there may never be one: no response can be
        branched, or the filter lets none through. Trees that are deferred for a larger update count in the
        step that trains them, as those of several steps.
        """
        others = self._seen["other_steps"]
        steps = self._seen["completing_steps"] or (others if others > 1 else 0)
        if not steps or deferred_groups:
            return
        if self.controller is not None:
            self.controller.observe(self._seen["trained"] / steps)
        self._seen = dict.fromkeys(self._seen, 0)

    def state_dict(self) -> dict[str, Any]:
        """The counts and the controller."""
        state: dict[str, Any] = dict(self._seen)
        if self.controller is not None:
            state["controller"] = self.controller.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = {name: int(state[name]) for name in self._seen}
        if self.controller is not None and "controller" in state:
            self.controller.load_state_dict(state["controller"])
