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


def batch_controller(config: settings_of.Config, problems: int) -> BatchController | None:
    """What adapts the number of problems, `problems` at the beginning; None where it stays as it is."""
    batch = config.adaptive_batch
    if not batch.enabled:
        return None
    return BatchController(
        target_samples=batch.target_samples or problems * config.samples_per_problem,
        problems=float(problems),
        least=batch.min_problems,
        most=config.most_problems(problems),
        smoothing=batch.smoothing,
    )


class TreeSchedule(Schedule):
    """A problem's tree is trained as a whole; where the number of problems is adapted, it follows what steps
    train."""

    unit = Unit.PROBLEM

    def __init__(self, config: settings_of.Config, tools: MethodTools) -> None:
        super().__init__(config, tools)
        self.controller = batch_controller(config, tools.problems)
        self._trained = 0
        """Samples trained since the controller was last told."""
        self._completing_steps = 0
        """Steps since then in which a problem passed the last stage."""
        self._other_steps = 0
        """Steps since then in which problems ended, all of them before the last stage."""

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
        self._trained += len(view.rows)
        self._completing_steps += finished
        self._other_steps += ended and not finished
        self._tell_controller(view.deferred_groups)
        return {} if self.controller is None else {"attnrl/next_problems": self.controller.number()}

    def _tell_controller(self, deferred_groups: int) -> None:
        """Tell the controller how many samples a step trains, where the steps since it was told last say so.

        A step in which no tree was completed (a pipeline that fills, a small budget) says little; what it
        trained counts with the next one. After two of them there may never be one: no response can be
        branched, or the filter lets none through. Trees that are deferred for a larger update count in the
        step that trains them, as those of several steps.
        """
        steps = self._completing_steps or (self._other_steps if self._other_steps > 1 else 0)
        if not steps or deferred_groups:
            return
        if self.controller is not None:
            self.controller.observe(self._trained / steps)
        self._trained = self._completing_steps = self._other_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The counts and the controller."""
        state: dict[str, Any] = {
            "trained": self._trained,
            "completing_steps": self._completing_steps,
            "other_steps": self._other_steps,
        }
        if self.controller is not None:
            state["controller"] = self.controller.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with a saved state."""
        self._trained = int(state["trained"])
        self._completing_steps = int(state["completing_steps"])
        self._other_steps = int(state["other_steps"])
        if self.controller is not None and "controller" in state:
            self.controller.load_state_dict(state["controller"])
