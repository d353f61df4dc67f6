"""Which requests are decoded in which training step."""

from marsrl_verl.core.scheduler.result import StepResult
from marsrl_verl.core.scheduler.scheduler import Mode, Scheduler

__all__ = ["Mode", "Scheduler", "StepResult"]
