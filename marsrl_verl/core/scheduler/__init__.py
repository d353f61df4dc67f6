"""Assignment of requests to training steps."""

from marsrl_verl.core.scheduler.scheduler import Mode, Scheduler
from marsrl_verl.core.scheduler.state import StepResult

__all__ = ["Mode", "Scheduler", "StepResult"]
