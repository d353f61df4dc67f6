"""Bounds of what a method is tried with: how long it may take, and how many groups a problem may have."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from marsrl_verl.core.method import Method
from marsrl_verl.core.request import RolloutRequest


class _Interrupted(BaseException):
    """No error of the program's, which nothing on the way may take for one."""


@contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Raises TimeoutError at the line that is executed when `seconds` are over, and once a second from then
    on: a program that is interrupted may be followed by another one that does not end. A thread other than
    the main one has no such limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Interrupted

    handler, begun = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # another one's, such as a test's
    try:
        yield
    except _Interrupted as error:
        text = f"{what} did not end within {seconds:g} s"
        raise TimeoutError(text).with_traceback(error.__traceback__) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - begun)), interval)


class GroupCounts:
    """Groups of each problem at each stage, against what the stages say (`Stage.groups_per_problem`).

    Args:
        method: whose stages.
        problems: number in a step, as configured.
    """

    def __init__(self, method: Method, problems: int) -> None:
        self._stages = {stage.name: stage for stage in method.stages(method.config)}
        self._share = problems / max(1, method.schedule.problems_per_step(problems))
        """Above 1 where one problem stands for several."""
        self._groups: Counter[tuple[str, str]] = Counter()
        self._responses: Counter[tuple[str, str]] = Counter()

    def add(self, requests: Sequence[RolloutRequest]) -> str | None:
        """Counts a round; returns what is wrong where a problem has more than its stage says."""
        fresh = [item for item in requests if item.resume is None]
        for item in fresh:
            key = item.problem.problem_id, item.stage
            self._groups[key] += 1
            self._responses[key] += item.n
        for key in [(item.problem.problem_id, item.stage) for item in fresh]:
            stage = self._stages[key[1]]
            if self._responses[key] > stage.samples_per_problem * self._share:
                return (
                    f"a problem had {self._groups[key]} groups with {self._responses[key]} responses at "
                    f"stage {stage.name}; its Stage says {stage.groups_per_problem} of {stage.group_size} at "
                    "most (groups_per_problem, group_size)"
                )
        return None
