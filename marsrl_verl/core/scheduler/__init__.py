"""Which requests are decoded in which training step."""

from marsrl_verl.core.scheduler.scheduler import Mode, Scheduler
from marsrl_verl.core.scheduler.state import StepResult

__all__ = ["Mode", "Scheduler", "StepResult"]
